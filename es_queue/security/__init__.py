"""TODO es_queue/security"""
