"""The commands, one readable pipeline each. ``cli`` parses options and prints; these do the work."""
