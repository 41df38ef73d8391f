"""Token ids from files and tokenizers, cut into windows, or refused."""

import pytest
import torch

from normlab.errors import InputError
from normlab.probes.inputs.hub import Loaded
from normlab.probes.inputs.texts import frame, position_limit, read_text, read_tokens, tokenize, windows
from tests.probes.zoo import Encoder, build


class Letters:
    """One id per letter; what is no letter is unknown."""

    unk_token_id = 0

    def __call__(self, text, **_):
        return {"input_ids": [ord(c) - 96 if c.isalpha() else self.unk_token_id for c in text]}


@pytest.mark.parametrize("text", ["[[1, 2, 3]]", "1 2\n3", "1,2, 3"])
def test_ids_are_read_from_json_or_from_plain_numbers(tmp_path, text):
    path = tmp_path / "ids"
    path.write_text(text)
    assert read_tokens(path).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "said"), [("[1, 'a']", "cannot read token ids"), ("1 b", "cannot read"), ("", "no token")]
)
def test_what_is_no_list_of_ids_is_refused(tmp_path, text, said):
    (tmp_path / "ids").write_text(text)
    with pytest.raises(InputError, match=said):
        read_tokens(tmp_path / "ids")
    (tmp_path / "ids").write_text(" \n")
    with pytest.raises(InputError, match="is empty"):
        read_text(tmp_path / "ids")


def test_a_tokenizer_that_does_not_know_the_text_is_refused_with_the_share_it_knows():
    loaded = Loaded("letters", torch.nn.Identity(), Letters())
    assert tokenize(loaded, "abc d").tolist() == [1, 2, 3, 0, 4]
    assert frame(loaded) == ([], [])
    with pytest.raises(InputError, match=r"letters knows only 50 % of the pieces"):
        tokenize(loaded, "ab12")
    with pytest.raises(InputError, match="makes no tokens"):
        tokenize(loaded, "")
    with pytest.raises(InputError, match="--tokens FILE"):
        tokenize(Loaded("bare", torch.nn.Identity(), None), "ab")


def test_windows_say_what_would_fit():
    model = Encoder(norm_first=True)
    assert windows(torch.arange(10), length=4, count=9, model=model).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(InputError, match=r"has 10 tokens, .* --window 8"):
        windows(torch.arange(10), length=16, count=1, model=model)
    with pytest.raises(InputError, match=r"token id 97 is outside the vocabulary of the model \(97 tokens\)"):
        windows(torch.arange(98), length=4, count=1, model=build("gpt2"))
    assert position_limit(build("gpt2")) == 64
    assert position_limit(model) is None
