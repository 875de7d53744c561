"""Statistics of a user's training steps.

Begin with step_stats.py, the cost of a step; quality.py measures how much of the gradients it left
behind, and metrics.py names all these numbers for TensorBoard and the like.
"""
