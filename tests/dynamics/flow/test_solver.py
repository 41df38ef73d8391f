import numpy as np

from normlab.dynamics import simulate


def test_the_step_is_small_enough_for_members_of_a_batch():
    """A batch shares its steps; each member is as accurate as when it is alone."""
    together = simulate(["post", "keel", "ngpt"], n=24, d=24, beta=4.0, seeds=(0, 1, 2))
    alone = simulate("ngpt", n=24, d=24, beta=4.0, seeds=(2,), relative=1e-12)
    assert np.abs(together.gap[2, 2] - alone.gap[0, 0]).max() < 1e-8
