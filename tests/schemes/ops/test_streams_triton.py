"""The streams' kernels in Triton's interpreter; test_depth_triton.py compiles them."""

from tests.schemes.ops.test_depth_triton import interpret


def test_the_interpreter_and_pytorch_agree():
    done = interpret("streams")
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr
