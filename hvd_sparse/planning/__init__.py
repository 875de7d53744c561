"""Planning: from measured numbers to a plan. Arithmetic alone, without ranks and without the core.

Begin with planner.py. It takes a profile (profile.py, network.py) and returns a plan (plan.py); in
between it simulates steps (pipeline.py) at the prices of costs.py. Users import the names below
from here.
"""

from hvd_sparse.planning.explanation import Row, explain
from hvd_sparse.planning.network import GpuLinks, Link, Network
from hvd_sparse.planning.plan import BucketPlan, Plan
from hvd_sparse.planning.profile import LayerProfile, Machine, Profile

__all__ = [
    "BucketPlan",
    "GpuLinks",
    "LayerProfile",
    "Link",
    "Machine",
    "Network",
    "Plan",
    "Profile",
    "Row",
    "explain",
]
