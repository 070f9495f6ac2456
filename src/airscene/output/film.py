"""Films as MP4 (which every browser plays), WebP or GIF, and frames with numbers and pictures.

The colour of a window shows its step, as in all figures. Pictures are enlarged by whole numbers, so
their pixels stay crisp.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw, ImageFont

from airscene.errors import AirsceneError
from airscene.io.files import atomic
from airscene.output.figures import overlay, step_colour

WIDTH, HEIGHT = 1280, 720
BACK, PLAIN, DIM, FAINT, LINE = "#0d1014", "#eef1f5", "#8a93a0", "#2a3038", "#6db3ff"
GRID = (290, 40, 1240, 680)
"""The box of the scenes in a training frame: left, top, right and bottom in pixels."""

Still = UInt8[np.ndarray, "720 1280 3"]


class Canvas:
    """A dark frame for numbers and pictures."""

    def __init__(self) -> None:
        self.image = Image.new("RGB", (WIDTH, HEIGHT), BACK)
        self.draw = ImageDraw.Draw(self.image)

    def array(self) -> Still:
        """The frame as an array."""
        return np.array(self.image)

    def text(
        self, at: tuple[float, float], text: str, size: int, colour: str, **style: Any
    ) -> None:
        """Write one line of text. `at` is its top left corner."""
        bold = style.pop("bold", False)
        self.draw.text(at, text, colour, _font(size, bold), **{"anchor": "la", **style})

    def number(self, at: tuple[int, int], label: str, value: str) -> None:
        """Write a large number above its label."""
        self.text(at, value, 46, PLAIN, bold=True)
        self.text((at[0] + 2, at[1] + 58), label, 17, DIM)

    def picture(
        self,
        at: tuple[int, int],
        image: Float[np.ndarray, "height width channels"],
        scale: float,
        scene: Any = None,
        border: int = 3,
    ) -> None:
        """Draw an image enlarged by `scale`, with the windows of a scene."""
        height, width = image.shape[:2]
        whole = max(1, int(scale))
        picture = Image.fromarray(overlay(image, scene, whole, border))
        if whole > scale:
            picture = picture.resize((round(width * scale), round(height * scale)))
        self.image.paste(picture, at)
        x, y = at
        self.draw.rectangle((x - 1, y - 1, x + picture.width, y + picture.height), outline=FAINT)

    def paste(self, at: tuple[int, int], pixels: UInt8[np.ndarray, "height width 3"]) -> None:
        """Place a picture as it is, with a thin frame."""
        self.image.paste(Image.fromarray(pixels), at)
        (x, y), (height, width) = at, pixels.shape[:2]
        self.draw.rectangle((x - 1, y - 1, x + width, y + height), outline=FAINT)

    def legend(self, at: tuple[int, int], steps: int, right: bool = False) -> None:
        """Draw the colours of the steps, starting at `at`; with `right`, ending there."""
        x, y = at
        label, side, pitch = "windows by step", 22, 34
        if right:
            x -= steps * pitch - (pitch - side)
            self.text((x - 14, y), label, 17, DIM, anchor="ra")
        else:
            self.text((x, y), label, 17, DIM)
            y += 32
        for step in range(steps):
            per_row = steps if right else 6
            left, top = x + step % per_row * pitch, y + step // per_row * pitch
            box = (left, top, left + side, top + side)
            self.draw.rectangle(box, outline=step_colour(step), width=3)
            middle = (left + side / 2 + 0.5, top + side / 2 + 0.5)
            self.text(middle, str(step + 1), 13, PLAIN, anchor="mm", bold=True)

    def bars(self, corner: tuple[int, int], shares: Float[np.ndarray, " counts"]) -> None:
        """Draw q(n), a bar for each n. `corner` is the top right corner."""
        right, top = corner
        pitch, wide, tall = min(34, 200 // len(shares)), min(22, 130 // len(shares)), 52
        for n, share in enumerate(shares[::-1]):
            x = right - n * pitch - wide
            self.draw.rectangle((x, top + tall, x + wide, top + tall + 1), fill=FAINT)
            high = round(tall * float(share))
            if high:
                self.draw.rectangle((x, top + tall - high, x + wide, top + tall), fill=LINE)
            name = str(len(shares) - 1 - n)
            self.text((x + wide / 2, top + 60), name, 15, DIM, anchor="ma")

    def curve(
        self,
        box: tuple[int, int, int, int],
        values: Sequence[float],
        steps: Sequence[int],
        now: int,
        bounded: bool,
    ) -> None:
        """Draw the values of the snapshots up to `now`; if `bounded`, on an axis from 0 to 1."""
        x0, y0, x1, y1 = box
        low, high = (0.0, 1.0) if bounded else _span(values)
        across = np.linspace(x0, x1, len(steps))
        down = y1 - (y1 - y0) * ((np.array(values) - low) / (high - low)).clip(0, 1)
        self.draw.line((x0, y1 + 1, x1, y1 + 1), FAINT, 2)
        if bounded:
            self.draw.line((x0, y0, x1, y0), FAINT, 1)
        marks = {0: steps[0], len(steps) - 1: steps[-1]}
        for k, step in marks.items():
            style = {"anchor": "ra" if k else "la"}
            self.text((across[k], y1 + 10), f"{step:,}", 14, DIM, **style)
        points = np.stack([across, down], axis=1)[: now + 1]
        self._smooth_line(points[np.isfinite(points).all(axis=1)])

    def _smooth_line(self, points: Float[np.ndarray, "points 2"], fine: int = 4) -> None:
        """Draw a line that ends in a dot, enlarged and then reduced: Pillow's lines are jagged."""
        over = Image.new("RGBA", (GRID[0] * fine, HEIGHT * fine))
        draw, at = ImageDraw.Draw(over), [tuple(point) for point in fine * points]
        if len(at) > 1:
            draw.line(at, LINE, 3 * fine, joint="curve")
        for x, y in at[-1:]:
            radius = 5 * fine
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=PLAIN)
        small = over.reduce(fine)
        self.image.paste(small, (0, 0), small)


def _span(values: Sequence[float]) -> tuple[float, float]:
    """The range of an axis; an early plunge must not flatten the rest of the curve."""
    finite = np.array([v for v in values if np.isfinite(v)] or [0.0])
    low, high = float(np.quantile(finite, 0.1)), float(finite.max())
    return low, max(high, low + 1.0)


@cache
def _font(size: int, bold: bool) -> ImageFont.FreeTypeFont:
    """The font bundled with matplotlib."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)


def writer() -> ModuleType:
    """Import imageio, which writes films, or raise an error that says how to install it."""
    try:
        import imageio.v2
        import imageio_ffmpeg  # noqa: F401

        return imageio.v2
    except ImportError:
        raise AirsceneError("films need imageio: pip install 'airscene[video]'") from None


@contextmanager
def movie(path: Path, rate: int) -> Iterator[Callable[[Still], None]]:
    """Yield a function that adds a frame to a film; the film appears when the block succeeds.

    The ending of `path` chooses the format: MP4 (H.264), or a looping WebP or GIF of half the size.
    """
    make = _video if path.suffix == ".mp4" else _animation
    with atomic(path) as temporary, make(temporary, rate) as add:
        yield add


@contextmanager
def _video(path: Path, rate: int) -> Iterator[Callable[[Still], None]]:
    imageio = writer()
    options = {"codec": "libx264", "pixelformat": "yuv420p", "macro_block_size": 2}
    options["output_params"] = ["-crf", "16", "-f", "mp4", "-movflags", "+faststart"]
    with warnings.catch_warnings():
        # ffmpeg is started by fork and immediate exec, so JAX's locks cannot block it.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        film = imageio.get_writer(path, format="FFMPEG", mode="I", fps=rate, **options)
        try:
            yield film.append_data
        finally:
            film.close()


@contextmanager
def _animation(path: Path, rate: int) -> Iterator[Callable[[Still], None]]:
    """Every second frame at half the size: small enough for a web page, and it needs no ffmpeg."""
    frames: list[Image.Image] = []
    seen = count()

    def add(frame: Still) -> None:
        if next(seen) % 2 == 0:
            frames.append(Image.fromarray(frame).reduce(2))

    yield add
    looping: dict[str, Any] = {"save_all": True, "append_images": frames[1:], "loop": 0}
    frames[0].save(path, duration=round(2_000 / rate), quality=75, method=6, **looping)
