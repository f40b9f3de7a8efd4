"""TODO es_queue/config"""
