from normlab.dynamics import Setting
from normlab.dynamics.experiment import explore


def test_the_page_is_one_file_without_the_network_and_escapes_names(tmp_path):
    from normlab.dynamics import Custom, Field, simulate
    from normlab.dynamics.page import build_page

    evil = "</script><img src=x onerror=alert(1)>"
    row = Field(evil, evil, ((0.0, Custom(s=lambda t, r, a, m: r, dr=lambda t, r, a, m: a)),))
    found = explore([row], Setting(n=8, d=8, time=2.0, init="symmetric", samples=21))
    ball = simulate([row], n=5, d=3, time=2.0, samples=11, keep_tokens=True)
    text = build_page(found, ball, notes=[evil], command=evil).render()
    assert evil not in text
    assert "src=http" not in text
    assert "sphere-play" in text
