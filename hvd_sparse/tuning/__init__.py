"""Tuning: an adaptive compression measures, has a plan made, and compares it with dense steps.

Begin with tuner.py, which goes through these stages. measurer.py measures ranks, network and
devices for it; decision.py lets rank 0 decide on what all ranks measured.
"""
