"""TODO es_queue/environments/gym_compat"""
