"""Checks on data and connections that others control: ACLs, passwords, TLS, files, user code."""
