"""Checkpoints of MindSpore, written by the real library: `python write_mindspore.py FOLDER`. (I/O)

Runs where mindspore is, and nothing of ftrun is.
"""

# mypy: ignore-errors
# The libraries are not there where types are checked.

import os
import sys

import mindspore
import mindspore.dataset
import numpy as np
from mindspore import nn
from mindspore.train import CheckpointConfig, Model, ModelCheckpoint


def main(folder):
    """A file, one with a checksum, one in slices, one of safetensors; and four steps in two epochs, each saved."""
    os.makedirs(f"{folder}/weights", exist_ok=True)
    mindspore.set_device("CPU")
    net = nn.SequentialCell(nn.Dense(8, 32), nn.Dense(32, 16), nn.Dense(16, 4))
    mindspore.save_checkpoint(net, f"{folder}/plain.ckpt", append_dict={"epoch_num": 1, "step_num": 10})
    mindspore.save_checkpoint(net, f"{folder}/crc.ckpt", crc_check=True)
    mindspore.save_checkpoint(net, f"{folder}/weights/net.safetensors", format="safetensors")
    mindspore.train.serialization.SLICE_SIZE = 1  # KiB, of 512 MiB
    mindspore.save_checkpoint(net, f"{folder}/sliced.ckpt")
    mindspore.train.serialization.SLICE_SIZE = 512 * 1024
    row = (np.ones(8, np.float32), np.zeros(4, np.float32))
    data = mindspore.dataset.GeneratorDataset([row] * 4, ["x", "y"], shuffle=False).batch(2)
    model = Model(net, nn.MSELoss(), nn.Adam(net.trainable_params()))
    for name, appended in (("run", ["epoch_num", "step_num"]), ("bare", None)):
        told = CheckpointConfig(save_checkpoint_steps=1, append_info=appended)
        saver = ModelCheckpoint(prefix="net", directory=f"{folder}/{name}/rank_0", config=told)
        model.train(2, data, callbacks=[saver], dataset_sink_mode=False)


if __name__ == "__main__":
    main(sys.argv[1])
