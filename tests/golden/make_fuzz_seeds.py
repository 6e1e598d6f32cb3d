#!/usr/bin/python3
"""Writes the seeds of the ONNX fuzz target, tests/fuzz/corpus/onnx/*.onnx: tiny models that reach every part of the
importer (typed and raw tensors, external data, subgraphs, functions, old opsets, named dimensions)."""
import hashlib
import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fuzz", "corpus", "onnx")


def value(name, dims=("N", 4), elem=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, elem, dims)


def save(name, nodes, inputs=None, outputs=None, weights=(), opset=13, extra=(), functions=(), sparse=()):
    graph = helper.make_graph(nodes, name, inputs or [value("x")], outputs or [value("y", None)], list(weights))
    graph.sparse_initializer.extend(sparse)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *extra], producer_name="")
    model.functions.extend(functions)
    with open(os.path.join(OUT, name + ".onnx"), "wb") as f:
        f.write(model.SerializeToString())
    return model


def node(op, i="x", o="y", **attrs):
    return helper.make_node(op, i.split(","), o.split(","), **attrs)


def main():
    os.makedirs(OUT, exist_ok=True)
    f32 = lambda name, *dims: numpy_helper.from_array(np.arange(np.prod(dims), dtype=np.float32).reshape(dims), name)
    i64 = lambda name, *v: numpy_helper.from_array(np.array(v, np.int64), name)
    img = [value("x", ("N", 3, 8, 8))]
    save("relu", [node("Relu")])
    save("cnn", [node("Conv", "x,w,b", "c", pads=[1, 1, 1, 1], kernel_shape=[3, 3]), node("BatchNormalization", "c,b,b,b,b", "n"),
                 node("Relu", "n", "r"), node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
                 node("GlobalAveragePool", "p", "g"), node("Flatten", "g", "f"), node("Gemm", "f,m,b", "y", transB=1)],
         img, weights=[f32("w", 2, 3, 3, 3), f32("b", 2), f32("m", 2, 2)])
    save("reshape_by_shape", [node("Shape", "x", "s"), node("Gather", "s,zero", "n"), node("Unsqueeze", "n,axes", "u"),
                              node("Concat", "u,minus", "t", axis=0), node("Reshape", "x,t", "y")],
         weights=[numpy_helper.from_array(np.array(0, np.int64), "zero"), i64("axes", 0), i64("minus", -1)])
    save("attention", [node("MatMul", "x,w", "q"), node("Transpose", "q", "k", perm=[0, 2, 1]), node("MatMul", "q,k", "a"),
                       node("Softmax", "a", "s", axis=-1), node("MatMul", "s,q", "o"), node("LayerNormalization", "o,g,g", "y")],
         [value("x", ("N", "T", 4))], weights=[f32("w", 4, 4), f32("g", 4)], opset=17)
    save("moves", [node("Slice", "x,a,b,c", "p"), node("Split", "p,d", "q,r", axis=1), node("Concat", "q,r", "t", axis=1),
                   node("Pad", "t,e", "u"), node("Tile", "u,f", "v"), node("Expand", "v,g", "w"), node("Squeeze", "w,c", "y")],
         [value("x", (3, 4))], weights=[i64("a", 0), i64("b", 1), i64("c", 0), i64("d", 1, 3), i64("e", 0, 0, 0, 1), i64("f", 1, 2), i64("g", 1, 10)])
    save("reduce", [node("ReduceMean", "x", "m", axes=[1]), node("Sub", "x,m", "s"), node("Pow", "s,two", "p"),
                    node("ReduceSum", "p,a", "r"), node("Sqrt", "r", "y")], weights=[f32("two"), i64("a", 1)])
    save("constants", [helper.make_node("Constant", [], ["a"], value_float=1.5), helper.make_node("Constant", [], ["b"], value_ints=[1, 2]),
                       helper.make_node("Constant", [], ["c"], value=f32("t", 4)), node("Add", "x,a", "d"), node("Mul", "d,c", "y")])
    typed = [helper.make_tensor("f", TensorProto.FLOAT, [2], [1.0, 2.0]), helper.make_tensor("h", TensorProto.FLOAT16, [2], [1.0, 2.0]),
             helper.make_tensor("i", TensorProto.INT8, [2], [-1, 2]), helper.make_tensor("l", TensorProto.INT64, [2], [-1, 2]),
             helper.make_tensor("d", TensorProto.DOUBLE, [2], [1.0, 2.0]), helper.make_tensor("u", TensorProto.UINT64, [2], [1, 2]),
             helper.make_tensor("o", TensorProto.BOOL, [2], [True, False])]
    save("typed", [node("Add", "x,f")], [value("x", ("N", 2))], weights=typed)
    save("strings", [node("Identity", "s")], weights=[helper.make_tensor("s", TensorProto.STRING, [1], [b"word"])])
    for name, location in (("external", "weights.bin"), ("traversal", "../../etc/passwd"),
                           ("by_hash", "sha256:" + hashlib.sha256(b"weights").hexdigest())):
        w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[64], data_location=TensorProto.EXTERNAL)
        for key, text in (("location", location), ("offset", "0"), ("length", "256")):
            w.external_data.add(key=key, value=text)
        save(name, [node("Add", "x,w")], [value("x", ("N", 64))], weights=[w])
    branch = lambda op: helper.make_graph([node(op, "x", op + "_out")], op, [], [value(op + "_out", None)])
    save("if", [node("If", "c", "y", then_branch=branch("Relu"), else_branch=branch("Neg"))],
         [value("c", (), TensorProto.BOOL), value("x")])
    body = helper.make_graph([node("Add", "s,x", "s2"), node("Identity", "go", "go2")], "body",
                             [value("i", (), TensorProto.INT64), value("go", (), TensorProto.BOOL), value("s", None)],
                             [value("go2", (), TensorProto.BOOL), value("s2", None)])
    save("loop", [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)], weights=[numpy_helper.from_array(np.array(3, np.int64), "n")])
    function = helper.make_function("mine", "Twice", ["a"], ["b"], [node("Add", "a,a", "b")], [helper.make_opsetid("", 15)])
    save("function", [helper.make_node("Twice", ["x"], ["y"], domain="mine")], opset=15, extra=[helper.make_opsetid("mine", 1)],
         functions=[function])
    sparse = helper.make_sparse_tensor(f32("v", 2), i64("", 1, 3), [8])
    save("sparse", [node("Relu")], sparse=[sparse])
    save("sequence", [node("Identity")], [helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, ("N",))])
    save("old6", [node("Add", "x,w", "a", broadcast=1, axis=1), node("Clip", "a", "c", min=0.0, max=6.0),
                  node("BatchNormalization", "c,w,w,w,w", "n", is_test=1), node("Dropout", "n", "d", ratio=0.5, is_test=1),
                  node("Reshape", "d,s", "r"), node("Gemm", "r,m,w", "y", broadcast=1)],
         [value("x", (1, 3, 2, 2))], weights=[f32("w", 3), i64("s", 1, 12), f32("m", 12, 3)], opset=6)
    save("old9", [node("Slice", "x", "a", starts=[0], ends=[2], axes=[1]), node("Pad", "a", "b", pads=[0, 0, 0, 1], value=1.0),
                  node("Split", "b", "c,d", axis=1, split=[1, 2]), node("Softmax", "d", "e", axis=1), node("Unsqueeze", "e", "f", axes=[0]),
                  node("Squeeze", "f", "g", axes=[0]), node("ReduceSum", "g", "h", axes=[1]), node("TopK", "g", "v,i", k=1),
                  node("Upsample", "x", "y", scales=[1.0, 2.0])], opset=8)
    save("old_softmax", [node("LogSoftmax", axis=1)], [value("x", ("N", 3, 4))], opset=11)
    save("unknown", [helper.make_node("Thing", ["x"], ["z"], domain="com.example", a=1, b="s", c=[1.0], d=["x", "y"]), node("Frobnicate", "z")],
         extra=[helper.make_opsetid("com.example", 2)])
    save("too_new", [node("Relu")], opset=99)
    skeleton = save("skeleton", [node("Add", "x,w", "z"), node("Relu", "z", "y")], weights=[f32("w", 4)], opset=17)
    skeleton.metadata_props.add(key="yoke.skeleton", value="1")
    skeleton.metadata_props.add(key="yoke.ids", value="3 1 0 2")
    with open(os.path.join(OUT, "skeleton.onnx"), "wb") as f:
        f.write(skeleton.SerializeToString())
    own = save("own_ops", [helper.make_node("FusedConv", ["x", "w"], ["y"], domain="ai.yoke", activation="relu")], img,
               weights=[f32("w", 2, 3, 1, 1)], opset=17, extra=[helper.make_opsetid("ai.yoke", 1)])
    del own


if __name__ == "__main__":
    main()
