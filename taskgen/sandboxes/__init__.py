"""The members of the sandbox seam (see ``taskgen.sandbox``) and the choice between them."""
