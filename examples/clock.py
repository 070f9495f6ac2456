"""Learn to read a clock from unlabelled pictures, by inverting a function that draws clocks.

`draw_clock` is an ordinary Python function: it takes two angles, draws a picture with Pillow and
has no gradients. The network sees unlabelled pictures and learns to infer the angles.

python examples/clock.py [STEPS]    (2,000 steps take 40 seconds; then all clocks are read right)
"""

import math
import sys

import numpy as np
from PIL import Image, ImageDraw

import airscene

SIDE, CENTRE = 64, 31.5
TURN = 2 * math.pi
ANGLE = {"sd": math.pi / math.sqrt(3), "step": 0.1, "limit": math.pi, "period": TURN}


def draw_clock(present: np.ndarray, kind: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """Draw one clock; `pose` holds the angles of its hands in radians, clockwise from the top."""
    image = Image.new("RGB", (SIDE, SIDE), (16, 18, 24))
    pen = ImageDraw.Draw(image)
    pen.ellipse((2, 2, SIDE - 3, SIDE - 3), fill=(236, 232, 220))
    for angle, length, width, ink in zip(
        pose[0], (17, 27), (6, 3), ((200, 40, 30), (30, 60, 170)), strict=True
    ):
        tip = (CENTRE + length * math.sin(angle), CENTRE - length * math.cos(angle))
        pen.line(((CENTRE, CENTRE), tip), fill=ink, width=width)
    return np.asarray(image)


def hands(minutes: float) -> np.ndarray:
    """Return the angles of the hands, from -pi to pi, at a time in minutes past twelve."""
    angles = np.array([minutes / 720, minutes / 60]) * TURN
    return (angles + math.pi) % TURN - math.pi


def read(thing: airscene.Thing) -> float:
    """Return minutes past twelve: the long hand gives the minute, the short hand the hour."""
    hour, minute = thing.pose["hour"] / TURN * 12, thing.pose["minute"] / TURN * 60 % 60
    return round(hour - minute / 60) % 12 * 60 + minute


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    rng = np.random.default_rng(0)
    seen, new = (rng.uniform(0, 720, size) for size in (2_000, 200))
    pictures = np.stack([draw_clock(None, None, hands(t)[None]) for t in seen])
    parameters = [airscene.Parameter("hour", **ANGLE), airscene.Parameter("minute", **ANGLE)]
    model = airscene.invert(draw_clock, parameters, images=pictures, steps=steps)
    layouts = model.infer(np.stack([draw_clock(None, None, hands(t)[None]) for t in new]))
    times = np.array([read(layout.objects[0]) for layout in layouts])
    off = np.abs((times - new + 360) % 720 - 360)
    print(f"200 new clocks: median error {np.median(off):.1f} minutes, "
          f"{100 * np.mean(off < 5):.0f}% within 5 minutes")  # fmt: skip
