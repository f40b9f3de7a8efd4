"""Services that an es-master starts for its run: private server and local workers."""
