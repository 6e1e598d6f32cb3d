#!/usr/bin/python3
"""Writes the seeds of the fuzz targets that read what a peer sends: tests/fuzz/corpus/{wire,chan,http}/*.

The msgpack writer here is a second one, from the specification, so that the seeds do not come from the code they try."""
import os
import struct

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fuzz", "corpus")


def pack(v):
    if v is None:
        return b"\xc0"
    if isinstance(v, bool):
        return b"\xc3" if v else b"\xc2"
    if isinstance(v, int):
        if -32 <= v < 128:
            return struct.pack("b", v)
        return (b"\xd3" + struct.pack(">q", v)) if v < 0 else b"\xcf" + struct.pack(">Q", v)
    if isinstance(v, float):
        return b"\xcb" + struct.pack(">d", v)
    if isinstance(v, str):
        b = v.encode()
        return (bytes([0xA0 | len(b)]) if len(b) < 32 else b"\xda" + struct.pack(">H", len(b))) + b
    if isinstance(v, bytes):
        return b"\xc4" + bytes([len(v)]) + v
    if isinstance(v, list):
        return (bytes([0x90 | len(v)]) if len(v) < 16 else b"\xdc" + struct.pack(">H", len(v))) + b"".join(map(pack, v))
    return (bytes([0x80 | len(v)]) if len(v) < 16 else b"\xde" + struct.pack(">H", len(v))) + b"".join(
        pack(k) + pack(x) for k, x in v.items())


HELLO = {
    "kind": "control", "version_major": 1, "version_minor": 0, "features": ["fp16"], "job_kinds": ["infer", "batch"],
    "agent": "00112233445566778899aabbccddeeff", "name": "pc", "nonce": bytes(16), "urls": ["tcp://127.0.0.1:4000"],
    "device": {"class_name": "phone", "os": "linux", "cores": 8, "threads": 4, "memory_bytes": 1 << 33, "emulated": True,
               "backends": [{"name": "ref", "isa": "generic", "exact": True, "gflops": 1.5, "gbytes_per_s": 2.0, "ops": ["Relu", "Conv"]}]},
    "sensors": {"heat": "fair", "temperature_celsius": float("nan"), "battery_frac": 0.5, "charging": False,
                "memory_available_bytes": 1 << 32, "load": 0.25},
    "term": 3, "purpose": "", "ticket": b"", "generation": 0, "edge": 0, "unknown": {"a": [1, None, b"x"]}}
TENSOR = {"value": 7, "dtype": "f32", "dims": [2, 8], "codec": "raw", "scales": [], "offset": 0, "bytes": 64}
MESSAGES = {
    "hello": (1, HELLO),
    "ping": (4, {"seq": 1, "term": 2, "sensors": {"heat": "nominal", "load": 1}, "generations": [1, 2, 3]}),
    "load": (20, {"term": 1, "generation": 5, "job": "7", "kind": "batch", "graph": "ab" * 32, "sizes": [{"name": "N", "value": 8}],
                  "source": "s", "stages": [{"index": 0, "nodes": [{"first": 0, "last": 3}, {"first": 9, "last": 9}],
                                             "forms": ["conv.im2col@blas", "", "", "ref@generic"], "depth": 2}],
                  "edges": [{"id": 1, "from": -1, "to": 0, "values": [0], "codec": "fp16", "peer": "p", "urls": [], "ticket": bytes(16), "credits": 2}],
                  "depth": 4, "threads": 0, "timeout_ms": 60000}),
    "run": (23, {"generation": 5, "data": "fashion-mnist", "mean": [0.5], "std": [0.25], "done": [0, 3, 7, 7], "want_accuracy": True}),
    "result": (25, {"generation": 5, "job": "7", "microbatch": 2, "count": 2, "correct": -1, "tensors": [TENSOR]}),
    "profile_result": (14, {"id": 1, "times": [{"node": 3, "form": "ref@generic", "size": 8, "ms": 0.5, "packed_bytes": 100000}]}),
    "microbatch": (43, {"generation": 5, "edge": 1, "microbatch": 0, "count": 2, "sizes": [{"name": "N", "value": 2}],
                        "tensors": [TENSOR], "body_bytes": 64}),
    "leave": (30, {"text": "bye"}),
}


def frame(kind, payload, type_=0, flags=0, stream=0):
    return struct.pack("<4sIHBBI", b"YOK1", len(payload), type_, kind, flags, stream) + payload


def message(name):
    return frame(0, pack(MESSAGES[name][1]), MESSAGES[name][0])


def head(name, stream):
    return frame(1, pack(MESSAGES[name][1]), MESSAGES[name][0], 0, stream)


def chunk(data, stream, last):
    return frame(2, data, 0, int(last), stream)


CHAN = {
    "hello": message("hello"),
    "messages": message("hello") + message("ping") + message("leave"),
    "unknown_message": frame(0, pack({"a": 1}), 999) + message("ping"),
    "stream": head("microbatch", 1) + chunk(bytes(64), 1, True),
    "interleaved": head("microbatch", 1) + head("microbatch", 2) + chunk(bytes(40), 2, False) + message("ping") + chunk(bytes(64), 1, True)
    + chunk(bytes(24), 2, True),
    "too_long": head("microbatch", 1) + chunk(bytes(65), 1, True),
    "too_short": head("microbatch", 1) + chunk(bytes(63), 1, True),
    "no_stream": chunk(bytes(8), 9, True),
    "twice": head("microbatch", 1) + head("microbatch", 1),
    "bad_magic": b"GET / HTTP/1.1\r\n\r\n",
    "oversize": frame(0, b"", 1)[:4] + struct.pack("<I", 0xFFFFFFFF) + bytes(8),
}

GET = b"GET /v1/jobs/7/events?cursor=3&wait_ms=%31 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
POST = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost:7711\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"model\":\"m\"}"
HTTP = {
    "get": GET,
    "post": POST,
    "pipelined": GET + POST + GET,
    "http10": b"GET / HTTP/1.0\r\n\r\n",
    "keep_alive10": b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" * 2,
    "head": b"HEAD /borrowed HTTP/1.1\r\nHost: a\r\n\r\n",
    "continue": b"PUT /v1/blobs/x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    "chunked": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "both_lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two_lengths": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "huge_length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
    "upgrade": b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nxyz",
    "connect": b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http09": b"GET /\r\n\r\n",
    "folded": b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n 2\r\n\r\n",
    "bare_lf": b"GET / HTTP/1.1\nHost: a\n\n",
    "percent": b"GET /a%2fb/%2e%2e/c%00?x=%zz&y=a+b HTTP/1.1\r\nHost: a\r\n\r\n",
    "tls": bytes.fromhex("16030100c8010000c403035f"),
    "many_headers": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(b"X%d: y\r\n" % i for i in range(70)) + b"\r\n",
}


def main():
    for target, seeds in (("wire", {k: bytes([t]) + pack(v) for k, (t, v) in MESSAGES.items()}), ("chan", CHAN), ("http", HTTP)):
        os.makedirs(os.path.join(OUT, target), exist_ok=True)
        for name, data in seeds.items():
            with open(os.path.join(OUT, target, name), "wb") as f:
                f.write(data)


if __name__ == "__main__":
    main()
