"""How arguments, workspaces and weights lie in memory: said once, for both languages."""
