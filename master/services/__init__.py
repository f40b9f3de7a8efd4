"""Processes of an es-master: private server, local workers, supervisor."""
