"""Statistics: what users are told of their steps.

Begin with step_stats.py, what a step cost; quality.py is how much it left behind, and metrics.py
gives all of it names for whoever watches a job.
"""
