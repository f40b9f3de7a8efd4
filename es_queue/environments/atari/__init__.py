"""TODO es_queue/environments/atari"""
