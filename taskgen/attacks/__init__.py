"""Attacks on the grader: what agents that cheat leave behind. They produce data alone; nothing of it is run here."""
