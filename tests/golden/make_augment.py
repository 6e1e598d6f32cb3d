#!/usr/bin/env python3
"""Makes tests/golden/augment: what torchvision's functions make of images with the draws that agent/augment.h defines.

The draws are computed here once more (xoshiro256**, splitmix64, RandomResizedCrop.get_params). cases.txt has a line a
case: FILE CHANNELS HEIGHT WIDTH AUGMENT SEED EPOCH OFFSET; FILE is one of tests/golden/images, the pixels (NCHW bytes)
lie at OFFSET of what pixels.gz holds. Written for Pillow 9.4 and torchvision 0.14 (Debian 12)."""
import gzip
import math
import pathlib
import sys

import numpy
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as F

HERE = pathlib.Path(__file__).parent
OUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "augment")
M = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
PAD, FLIP, BOX = 3, 4, 5


def mix(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & M
    x = (x ^ x >> 27) * 0x94D049BB133111EB & M
    return x ^ x >> 31


def key(a, b, c):
    h = mix(a + GOLDEN & M)
    h = mix((h ^ b) + 2 * GOLDEN & M)
    return mix((h ^ c) + 3 * GOLDEN & M)


class Rng:
    def __init__(self, seed, kind, epoch, sample):
        state = key(key(seed, kind, 0), epoch, sample)
        self.s = []
        for _ in range(4):
            state = state + GOLDEN & M
            self.s.append(mix(state))

    def next(self):
        s = self.s
        rotl = lambda x, k: (x << k | x >> 64 - k) & M
        out, t = rotl(s[1] * 5 & M, 7) * 9 & M, s[1] << 17 & M
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotl(s[3], 45)
        return out

    def below(self, n):
        while True:
            v = self.next()
            if v >= (1 << 64) % n:
                return v % n

    def unit(self):
        return (self.next() >> 11) * 2.0**-53


def box(rng, height, width, smallest):
    for _ in range(10):
        area = height * width * (smallest + (1 - smallest) * rng.unit())
        low, high = math.log(3 / 4), math.log(4 / 3)
        ratio = math.exp(low + (high - low) * rng.unit())
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = rng.below(height - h + 1)
            return top, rng.below(width - w + 1), h, w
    if width / height < 3 / 4:
        w, h = width, round(width / (3 / 4))
    elif width / height > 4 / 3:
        w, h = round(height * (4 / 3)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def expected(file, channels, size, augment, seed, epoch):
    image = Image.open(HERE / "images" / file).convert("L" if channels == 1 else "RGB")
    resized = False
    for part in augment.split(","):
        name, _, value = part.partition(":")
        if name == "random-resized-crop":
            part = box(Rng(seed, BOX, epoch, 0), image.height, image.width, float(value or 0.08))
            image = F.resized_crop(image, *part, size, InterpolationMode.BILINEAR)
            resized = True
            continue
        if not resized:
            image, resized = F.resize(image, size, InterpolationMode.BILINEAR), True
        if name == "pad-crop":
            rng, n = Rng(seed, PAD, epoch, 0), int(value)
            top, left = rng.below(2 * n + 1), rng.below(2 * n + 1)
            image = F.crop(F.pad(image, n), top, left, *size)
        elif Rng(seed, FLIP, epoch, 0).next() >> 63:
            image = F.hflip(image)
    pixels = numpy.asarray(image)
    return pixels.reshape(*size, channels).transpose(2, 0, 1).tobytes()


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    lines, pixels = [], b""
    plans = ("flip", "pad-crop:3", "pad-crop:9,flip", "flip,pad-crop:5", "random-resized-crop", "random-resized-crop:0.5,flip",
             "random-resized-crop:1", "random-resized-crop:0.3,pad-crop:2,flip", "random-resized-crop,flip,pad-crop:1")
    for k, plan in enumerate(plans):
        for n in range(6):
            file = ("wide.jpg", "tall.jpg", "rgb.png", "line.png", "gray.jpg", "half.jpg")[n]
            channels, size = (1 if (n + k) % 3 == 0 else 3), ((9, 13), (12, 12), (16, 10))[n % 3]
            seed, epoch = (7 + 1000003 * k * k, M)[k == 3], n
            lines.append(f"{file} {channels} {size[0]} {size[1]} {plan} {seed} {epoch} {len(pixels)}\n")
            pixels += expected(file, channels, size, plan, seed, epoch)
    (OUT / "cases.txt").write_text("".join(lines))
    (OUT / "pixels.gz").write_bytes(gzip.compress(pixels, 9, mtime=0))


main()
