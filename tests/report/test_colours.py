"""A scheme has one colour, everywhere and always."""

import itertools

import normlab as nl
from normlab.report.colours import SCHEME_COLOURS, scheme_colour, scheme_colours, shade
from normlab.schemes import families


def rgb(colour):
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def apart(a, b):
    """A distance that follows the eye better than the plain one (the "redmean" of the sRGB cube)."""
    red = (rgb(a)[0] + rgb(b)[0]) / 2
    r, g, b = ((x - y) ** 2 for x, y in zip(rgb(a), rgb(b), strict=True))
    return ((2 + red / 256) * r + 4 * g + (2 + (255 - red) / 256) * b) ** 0.5


def test_every_registered_scheme_has_its_own():
    own = [name for names in families().values() for name in names]
    assert set(SCHEME_COLOURS) == set(own)
    for a, b in itertools.combinations(own, 2):
        assert apart(scheme_colour(a), scheme_colour(b)) > 55, (a, b)


def test_what_is_drawn_together_is_far_apart():
    together = [
        ("post_norm", "pre_norm", "peri_norm", "ln_scaling", "block_attn_res"),
        ("pre_norm", "post_norm", "peri_norm", "peri_init_norm"),
        ("post_norm", "pre_norm", "mix_norm", "peri_norm", "ngpt", "sqrt_scaling"),
    ]
    for names in together:
        for a, b in itertools.combinations(names, 2):
            assert apart(scheme_colour(a), scheme_colour(b)) > 130, (a, b)


def test_they_show_on_light_and_on_dark_paper():
    for name in nl.SCHEMES:
        assert apart(scheme_colour(name), "#FFFFFF") > 130, name
        assert apart(scheme_colour(name), "#0D1117") > 130, name


def test_options_and_order_do_not_change_a_colour():
    assert scheme_colour("block_attn_res(blocks=2)") == scheme_colour("Block-Attn-Res") == "#CC79A7"
    assert scheme_colour("pre_norm ssmax") == scheme_colour("pre_norm")
    one, other = scheme_colours(["mhc", "pre_norm"]), scheme_colours(["pre_norm", "ngpt", "mhc"])
    assert one["mhc"] == other["mhc"]
    assert one["pre_norm"] == other["pre_norm"]


def test_variants_are_shades_and_strangers_have_a_colour_of_their_name():
    found = scheme_colours(["mhc", "mhc(streams=2)", "mhc(streams=8)", "my_norm", "your_norm"])
    assert len(set(found.values())) == 5
    assert found["mhc"] == SCHEME_COLOURS["mhc"]
    assert scheme_colour("my_norm") == found["my_norm"]
    assert sum(rgb(shade("#808080", 1))) > sum(rgb("#808080")) > sum(rgb(shade("#808080", 2)))
    assert all(0 <= channel <= 255 for step in range(8) for channel in rgb(shade("#CC79A7", step)))
