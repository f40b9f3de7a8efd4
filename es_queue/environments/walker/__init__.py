"""TODO es_queue/environments/walker"""
