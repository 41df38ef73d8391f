"""Pixels: scaled as the model's folder says, drawn from a seed, refused in one sentence."""

import json

import pytest
import torch

from normlab.errors import InputError
from normlab.probes.inputs.images import read_images, sample_images, scaling, size_of
from tests.probes.zoo import Encoder, build

PLAIN = ([0.0] * 3, [1.0] * 3)


def test_the_size_is_the_models_own():
    assert size_of(build("vit")) == (3, 16, 16)
    assert size_of(Encoder(norm_first=True)) == (3, 224, 224)  # a model that does not say


def test_scaling_is_read_from_the_folder_and_a_broken_file_is_no_scaling(tmp_path):
    path = tmp_path / "preprocessor_config.json"
    assert scaling(str(tmp_path)) == ([0.5] * 3, [0.5] * 3)
    path.write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 4]}))
    assert scaling(str(tmp_path)) == ([0.1, 0.2, 0.3], [1.0, 2.0, 4.0])
    path.write_text('{"image_mean": 3}')
    assert scaling(str(tmp_path)) == ([0.5] * 3, [0.5] * 3)


def test_drawn_images_follow_their_seed_and_the_scale_is_affine():
    drawn = sample_images((3, 8, 12), count=2, seed=1, scale=PLAIN)
    assert drawn.shape == (2, 3, 8, 12)
    assert 0 <= float(drawn.min()) < 0.2 < 0.8 < float(drawn.max()) <= 1
    assert not torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn, sample_images((3, 8, 12), count=2, seed=2, scale=PLAIN))
    scaled = sample_images((3, 8, 12), count=2, seed=1, scale=([0.5] * 3, [0.25] * 3))
    torch.testing.assert_close(scaled, (drawn - 0.5) / 0.25)


def test_files_are_read_by_name_resized_and_kept_in_colour(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (9, 5), (255, 0, 51)).save(tmp_path / "b.png")
    image.new("RGB", (4, 4), (0, 255, 0)).save(tmp_path / "a.png")
    read = read_images(tmp_path, (3, 6, 8), count=5, scale=PLAIN)
    assert read.shape == (2, 3, 6, 8)
    torch.testing.assert_close(read[0, :, 0, 0], torch.tensor([0.0, 1.0, 0.0]))
    torch.testing.assert_close(read[1, :, 3, 3], torch.tensor([1.0, 0.0, 0.2]))


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=r"there is no folder .*nowhere"):
        read_images(tmp_path / "nowhere", (3, 4, 4), count=1, scale=PLAIN)
    with pytest.raises(InputError, match="holds no images"):
        read_images(tmp_path, (3, 4, 4), count=1, scale=PLAIN)
    pytest.importorskip("PIL.Image")
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    with pytest.raises(InputError, match=r"broken\.png' could not be read as an image"):
        read_images(tmp_path, (3, 4, 4), count=1, scale=PLAIN)
