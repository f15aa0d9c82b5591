"""Verbs that run a script of the user's."""
