import torch

from normlab.schemes.depth_buffers import Basket, Shelf, beside, shelve


def values(count):
    return [torch.randn(5, 3, dtype=torch.float64) for _ in range(count)]


def test_neighbours_are_a_view_and_others_a_copy():
    shelf = Shelf(torch.zeros(5, 3, dtype=torch.float64), 3)
    tensors = values(3)
    placed = [shelve(t, None, shelf, n) for n, t in enumerate(tensors)]
    found = beside(placed)
    assert torch.equal(found, torch.stack(tensors, dim=1))
    assert found.data_ptr() == shelf.room.data_ptr()
    turned = beside([placed[1], placed[0]])
    assert torch.equal(turned, torch.stack([tensors[1], tensors[0]], dim=1))
    assert turned.data_ptr() != shelf.room.data_ptr()


def test_a_place_is_given_away_once_and_the_sum_is_right_either_way():
    """A stream that is continued twice must not overwrite what the first continuation holds."""
    shelf = Shelf(torch.zeros(5, 3, dtype=torch.float64), 1)
    x, y, z = (t.requires_grad_() for t in values(3))
    first, second, beyond = shelve(x, y, shelf, 0), shelve(x, z, shelf, 0), shelve(x, None, shelf, 1)
    assert torch.equal(first, x + y)
    assert torch.equal(second, x + z)
    assert torch.equal(beyond, x)
    (first + 2 * second + 4 * beyond).sum().backward()
    assert [float(t.grad[0, 0]) for t in (x, y, z)] == [7.0, 1.0, 2.0]


def test_a_basket_collects_what_is_in_place_and_what_is_not():
    basket, (a, b) = Basket(2), values(2)
    assert torch.equal(basket.empty([a, b]), torch.stack([a, b], dim=1))
    placed = basket.place(1, b)
    placed.copy_(b)
    assert basket.place(1, b) is None
    assert torch.equal(basket.empty([a, placed]), torch.stack([a, b], dim=1))
    assert basket.place(1, b) is not None  # emptied, its places are free again
