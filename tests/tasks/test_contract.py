import pytest

from normlab.errors import ContractError
from normlab.tasks import Batch, SetComplement, task
from normlab.tasks.contract import check_task

ALL = [
    ("set_complement", {"vocab": 12}),
    ("set_complement", {"vocab": 6, "replacement": True}),
    ("set_complement", {"vocab": 12, "targets": "exact"}),
    ("max_retrieval", {}),
    ("max_retrieval", {"classes": 3}),
    ("dyck", {}),
    ("dyck", {"pairs": 3, "depth": 2, "source": "strings"}),
    *[("tomita", {"number": n}) for n in range(1, 8)],
    ("tomita", {"number": 6, "source": "strings"}),
    ("text", {}),
    ("masked_text", {}),
]


@pytest.mark.parametrize(("name", "options"), ALL)
def test_contract(name, options):
    check_task(task(name, **options))


def test_the_contract_catches_a_wrong_target():
    class Wrong(SetComplement):
        def sample(self, *args, **kwargs) -> Batch:
            batch = super().sample(*args, **kwargs)
            return Batch(batch.tokens, batch.tokens, batch.law)

    with pytest.raises(ContractError, match="every target is legal"):
        check_task(Wrong(vocab=12))


def test_the_contract_catches_a_law_that_looks_ahead():
    class Ahead(SetComplement):
        def law(self, tokens):
            return super().law(tokens)[:, -1:].expand(-1, tokens.shape[1], -1)

    with pytest.raises(ContractError):
        check_task(Ahead(vocab=12))
