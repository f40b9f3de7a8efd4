"""Internal: the process that leads a run, and the commands around it.

It publishes generations, collects results, updates the parameters and saves the run. Use
``from es_queue import train``; modules and names in here change without notice.
"""
