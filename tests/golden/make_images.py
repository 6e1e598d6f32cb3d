#!/usr/bin/env python3
"""Makes tests/golden/images: small JPEG and PNG files of every kind, and what Pillow and torchvision make of them.

cases.txt has a line a case: FILE CHANNELS RESIZE CROP FILTER HEIGHT WIDTH OFFSET; RESIZE and CROP are -, N or HxW; the
pixels (interleaved bytes) lie at OFFSET of what pixels.gz holds. Written for Pillow 9.4 and torchvision 0.14 (Debian 12)."""
import gzip
import io
import pathlib
import struct
import sys
import zlib

import numpy
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

OUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "images")
FILTERS = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC, "nearest": InterpolationMode.NEAREST}
rng = numpy.random.default_rng(7)


def picture(height, width, channels=3, top=255):
    """Smooth waves with a little noise and one sharp edge."""
    y, x = numpy.mgrid[0:height, 0:width]
    planes = []
    for c in range(channels):
        wave = 0.5 + 0.3 * numpy.sin(x / (3.0 + c) + c) + 0.2 * numpy.cos(y / (2.0 + 2 * c))
        wave[height // 3:height // 2, width // 4:width // 2] = c % 2
        planes.append(wave + rng.normal(0, 0.008, wave.shape))
    return (numpy.clip(numpy.stack(planes, -1), 0, 1) * top + 0.5).astype(numpy.int64)


def png(path, pixels, kind, bits, palette=None, trns=None, interlace=False):
    """Any colour type and depth (Pillow writes few of them)."""
    height, width, channels = pixels.shape

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    def rows(part):
        out = b""
        for row in part.reshape(part.shape[0], -1):
            if bits == 16:
                out += b"\0" + row.astype(">u2").tobytes()
            elif bits == 8:
                out += b"\0" + row.astype("u1").tobytes()
            else:
                text = "".join(format(int(v), f"0{bits}b") for v in row)
                text += "0" * (-len(text) % 8)
                out += b"\0" + bytes(int(text[i:i + 8], 2) for i in range(0, len(text), 8))
        return out

    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    parts = [pixels[y::dy, x::dx] for y, x, dy, dx in passes] if interlace else [pixels]
    data = b"".join(rows(p) for p in parts if p.size)
    body = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, int(interlace)))
    if palette is not None:
        body += chunk(b"PLTE", palette.astype("u1").tobytes())
    if trns is not None:
        body += chunk(b"tRNS", trns)
    body += chunk(b"IDAT", zlib.compress(data, 9)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def make_files():
    rgb = picture(23, 31)
    image = Image.fromarray(rgb.astype("u1"))
    png(OUT / "rgb.png", rgb, 2, 8)
    png(OUT / "interlaced.png", picture(19, 13), 2, 8, interlace=True)
    png(OUT / "rgb16.png", picture(9, 11, top=65535), 2, 16)
    png(OUT / "rgba.png", picture(12, 10, 4), 6, 8)
    png(OUT / "rgba16.png", picture(7, 10, 4, 65535), 6, 16)
    for bits in (1, 2, 4, 8):
        png(OUT / f"gray{bits}.png", picture(13, 11, 1, (1 << bits) - 1), 0, bits)
    png(OUT / "gray16.png", picture(6, 9, 1, 600), 0, 16)
    png(OUT / "gray_alpha.png", picture(9, 8, 2), 4, 8)
    png(OUT / "gray_alpha16.png", picture(9, 8, 2, 65535), 4, 16)
    png(OUT / "gray_clear.png", picture(8, 8, 1), 0, 8, trns=b"\0\x80")
    for bits in (1, 2, 4, 8):
        colors = rng.integers(0, 256, (1 << bits, 3))
        png(OUT / f"palette{bits}.png", picture(11, 17, 1, (1 << bits) - 1), 3, bits, palette=colors)
    png(OUT / "palette_clear.png", picture(11, 17, 1, 15), 3, 4, palette=rng.integers(0, 256, (16, 3)), trns=b"\0\x80\xff")
    image.save(OUT / "half.jpg", quality=90)  # chroma at half the size
    image.save(OUT / "full.jpg", quality=95, subsampling=0)
    image.save(OUT / "progressive.jpg", quality=80, progressive=True)
    image.convert("L").save(OUT / "gray.jpg", quality=85)
    image.convert("CMYK").save(OUT / "cmyk.jpg", quality=90)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn, which is not applied
    image.save(OUT / "turned.jpg", quality=90, exif=exif)
    image.save(OUT / "png_inside.jpg", format="PNG")
    (OUT / "jpeg_inside.png").write_bytes((OUT / "half.jpg").read_bytes())
    Image.fromarray(picture(41, 60).astype("u1")).save(OUT / "wide.jpg", quality=60)
    Image.fromarray(picture(53, 26).astype("u1")).save(OUT / "tall.jpg", quality=60)
    Image.fromarray(picture(1, 5).astype("u1")).save(OUT / "line.png")


def parse(text):
    if text == "-":
        return None
    return int(text) if "x" not in text else [int(v) for v in text.split("x")]


def expected(file, channels, resize, crop, kind):
    image = Image.open(OUT / file).convert("L" if channels == 1 else "RGB")
    if parse(resize) is not None:
        image = F.resize(image, parse(resize), FILTERS[kind])
    if parse(crop) is not None:
        image = F.center_crop(image, parse(crop))
    return numpy.asarray(image)


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for old in OUT.iterdir():
        old.unlink()
    make_files()
    files = sorted(p.name for p in OUT.iterdir())
    cases = [(f, 3, "-", "-", "bilinear") for f in files]
    cases += [(f, 1, "-", "-", "bilinear") for f in ("rgb.png", "cmyk.jpg", "rgba16.png", "palette4.png", "gray16.png", "gray1.png")]
    for resize in ("16", "9x33", "30x7", "23x12", "34x31", "1x1", "5"):
        cases += [("half.jpg", 3, resize, "-", k) for k in FILTERS]
    cases += [("rgb.png", 1, r, "-", k) for r in ("17", "8x40") for k in FILTERS]
    for resize, crop in (("20", "16"), ("20", "17x18"), ("20", "15x21"), ("-", "20"), ("-", "30"), ("-", "40x8"), ("-", "9x50"),
                         ("12", "13x14"), ("10", "15"), ("24x24", "23"), ("24x25", "21x20")):
        cases += [(f, 3, resize, crop, "bilinear") for f in ("rgb.png", "tall.jpg")]
    cases += [(f, 3, r, "24", k) for f in ("wide.jpg", "tall.jpg") for r in ("32", "61") for k in ("bilinear", "bicubic")]
    cases += [("line.png", 3, r, "-", "bilinear") for r in ("3", "4x4", "1x2")]
    pixels, lines = io.BytesIO(), []
    for case in cases:
        data = expected(*case)
        lines.append(" ".join(map(str, [*case, data.shape[0], data.shape[1], pixels.tell()])))
        pixels.write(data.tobytes())
    (OUT / "cases.txt").write_text("\n".join(lines) + "\n")
    (OUT / "pixels.gz").write_bytes(gzip.compress(pixels.getvalue(), 9, mtime=0))
    print(f"{len(files)} files, {len(cases)} cases, {sum(p.stat().st_size for p in OUT.iterdir())} bytes")


if __name__ == "__main__":
    main()
