"""Tuning: an adaptive compression measures, makes a plan, and compares it with dense steps.

Begin with tuner.py, which runs these stages. measurer.py measures ranks, network and devices;
decision.py lets rank 0 decide on the measurements of all ranks.
"""
