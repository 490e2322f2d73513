"""The contenders of the benchmark of training steps."""

from bayesbits.methods.lsq import LsqQuantizer
from benchmarks.training import hours_of_imagenet, make_step


def test_hours_of_the_papers_training():
    assert hours_of_imagenet(0.1, batch=256) == 5.6  # 1,281,167 images / 256 x 40 epochs x 0.1 s / 3600


def test_the_other_way_to_train_is_lsq_at_8_bits():
    step = make_step("fake-quantization", "lenet5", 2, 28)
    compressor = step.__closure__[-1].cell_contents.compressor
    quantizers = compressor.attachment.quantizers
    assert isinstance(quantizers["classifier.1.weight"], LsqQuantizer)
    assert set(compressor.plan().bits.values()) == {8}


def test_a_step_of_the_float_network():
    assert make_step("float", "lenet5", 2, 28)().isfinite().all()
