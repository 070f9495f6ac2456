"""Find the objects in an image of two digits, move one, remove one, and render the scene again.

python examples/edit.py [OUT]    (writes OUT, by default edited.png)
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

import airscene
from airscene.config import DataConfig
from airscene.data import make_scenes
from airscene.output.figures import overlay

SCALE, GAP, SEED = 5, 12, 2


def main(path: Path) -> list[int]:
    """Write the picture; return the number of objects that the model finds in each panel."""
    model = airscene.load("digits")
    scenes = make_scenes(DataConfig(), model.config, part="test", scenes=1, counts=(2,), seed=SEED)
    image = scenes.images[0, :, :, 0]
    scene = model.infer(image)
    left, right = sorted((0, 1), key=lambda i: scene.objects[i].box[0])
    moved = scene.moved(left, dy=20).render()
    removed = scene.without(right).render()
    shown = (image / 255, scene), (moved, None), (removed, None)
    panels = [
        np.pad(overlay(*one, SCALE, 3), ((0, 0), (0, GAP), (0, 0)), constant_values=255)
        for one in shown
    ]
    Image.fromarray(np.hstack(panels)[:, :-GAP]).save(path)
    return [found.count for found in model.infer([image, moved, removed])]


if __name__ == "__main__":
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "edited.png")
    if out.exists():
        sys.exit(f"{out} already exists: name another file")
    print(f"objects found: {main(out)}; wrote {out}")
