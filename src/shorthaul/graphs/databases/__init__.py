"""Tables with primary and foreign keys -> graphs whose nodes are rows."""
