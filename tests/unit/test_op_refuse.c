/* What the shape rules of recurrent, resampling, Einsum and signal ops refuse: one line a case, and the word that its
 * message must hold. A line without a word is accepted: it shows that the cases beside it fail for their own reason. */
#include "tests/unit/op_line.h"

struct refusal {
    const char *line;
    yk_err err;
    const char *word;
};

static const struct refusal recurrent[] = {
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3", YK_OK, NULL},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 float32:1,24 int32:2 float32:1,2,3 float32:1,2,3 "
     "float32:1,9 attr hidden_size=i:3 clip=f:1.5",
        YK_OK, NULL},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 attr hidden_size=i:4", YK_INVAL, "hidden_size"},
    {"LSTM 3 in float32:5,2,4 float32:1,9,4 float32:1,12,3", YK_INVAL, "W"},
    {"LSTM 3 in float32:5,2,4 float32:1,12,5 float32:1,12,3", YK_INVAL, "W"},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,13,3", YK_INVAL, "R"},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,0", YK_INVAL, "hidden_size"},
    {"LSTM 3 in float32:5,2,4 float32:2,12,4 float32:2,12,3", YK_INVAL, "W"},
    {"LSTM 3 in float32:5,2,4 float32:2,12,4 float32:2,12,3 attr direction=s:bidirectional", YK_OK, NULL},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 attr direction=s:backward", YK_INVAL, "direction"},
    {"LSTM 3 in float32:5,2 float32:1,12,4 float32:1,12,3", YK_INVAL, "axes"},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:12,3", YK_INVAL, "axes"},
    {"LSTM 3 in float32:5,2,4 float64:1,12,4 float32:1,12,3", YK_INVAL, "type"},
    {"LSTM 3 in int32:5,2,4 int32:1,12,4 int32:1,12,3", YK_INVAL, "type"},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 float32:1,23", YK_INVAL, "B"},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 - int32:3", YK_INVAL, "sequence_lens"},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 - int64:2", YK_INVAL, "type"},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 - - float32:2,1,3", YK_INVAL, "initial_h"},
    {"LSTM 3 in float32:2,5,4 float32:1,12,4 float32:1,12,3 - - float32:2,1,3 attr layout=i:1", YK_OK, NULL},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 attr layout=i:2", YK_INVAL, "layout"},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 - - - float32:1,2,4", YK_INVAL, "initial_c"},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 - - - - float32:1,6", YK_INVAL, "P"},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 attr clip=f:-1", YK_INVAL, "clip"},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 attr clip=i:1", YK_INVAL, "clip"},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 attr activations=strings:Tanh,Tanh", YK_INVAL,
        "activations"},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 attr activations=strings:Tanh,Tanh,Sine", YK_INVAL, "Sine"},
    {"LSTM 3 in float32:5,2,4 float32:1,12,4 float32:1,12,3 attr activation_alpha=f:1", YK_INVAL, "activation_alpha"},
    {"LSTM 3 in float32:0,1152921504606846976,4 float32:1,12,4 float32:1,12,3", YK_LIMIT, "large"},
    {"GRU 2 in float32:5,2,4 float32:1,9,4 float32:1,9,3", YK_OK, NULL},
    {"GRU 2 in float32:5,2,4 float32:1,12,4 float32:1,12,3", YK_INVAL, "W"},
    {"GRU 2 in float32:5,2,4 float32:1,9,4 float32:1,9,3 attr linear_before_reset=s:yes", YK_INVAL,
        "linear_before_reset"},
    {"RNN 2 in float32:5,2,4 float32:1,3,4 float32:1,3,3", YK_OK, NULL},
    {"RNN 2 in float32:5,2,4 float32:1,3,4 float32:1,4,3", YK_INVAL, "R"},
};

static const struct refusal deconv[] = {
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3", YK_OK, NULL},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3 attr group=i:2", YK_OK, NULL},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3 attr group=i:3", YK_INVAL, "groups"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3 attr group=i:0", YK_INVAL, "groups"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3 attr group=i:-4611686018427387904", YK_INVAL, "groups"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:3,2,3,3", YK_INVAL, "channels"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3", YK_INVAL, "axes"},
    {"ConvTranspose 1 in float32:1,4 float32:4,2", YK_INVAL, "axes"},
    {"ConvTranspose 1 in float32:1,4,2,2,2,2 float32:4,2,1,1,1,1", YK_UNSUPPORTED, "axes"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3 attr kernel_shape=ints:3,4", YK_INVAL, "kernel_shape"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,0,3", YK_INVAL, "kernel_shape"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,0,3,3", YK_INVAL, "channels"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3 attr strides=ints:0,1", YK_INVAL, "strides"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3 attr strides=ints:1099511627776,1", YK_INVAL, "strides"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3 attr dilations=ints:1", YK_INVAL, "dilations"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3 attr pads=ints:4,0,3,0", YK_INVAL, "output"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3 attr pads=ints:-1,0,0,0", YK_INVAL, "pads"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3 attr output_padding=ints:-1,0", YK_INVAL, "output_padding"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3 attr output_shape=ints:0,7", YK_INVAL, "output"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3 attr output_shape=ints:7", YK_INVAL, "output_shape"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3 attr auto_pad=s:SAME", YK_INVAL, "auto_pad"},
    {"ConvTranspose 1 in float32:1,4,0,5 float32:4,2,3,3", YK_INVAL, "empty"},
    {"ConvTranspose 1 in float32:1,4,5,5 float32:4,2,3,3 float32:3", YK_INVAL, "bias"},
    {"ConvTranspose 1 in float32:1,4,5,5 float64:4,2,3,3", YK_INVAL, "type"},
    {"ConvTranspose 1 in int32:1,4,5,5 int32:4,2,3,3", YK_INVAL, "type"},
    {"ConvTranspose 1 in float32:1,1,1073741824,5 float32:1,1,3,3 attr strides=ints:2147483647,1", YK_LIMIT, "large"},
    {"ConvTranspose 1 in float32:0,1,1152921504606846976,1 float32:1,1,3,3 attr strides=ints:2147483647,1", YK_LIMIT,
        "large"},
};

static const struct refusal resize[] = {
    {"Resize 1 in float32:1,1,4,4 - float32:4=1,1,2,2", YK_OK, NULL},
    {"Resize 1 in float32:1,1,4,4 - - int64:4=1,1,8,3", YK_OK, NULL},
    {"Resize 1 in float32:1,1,4,4 float32:0= float32:0= int64:4=1,1,8,3", YK_OK, NULL},
    {"Resize 1 in bool:1,1,4,4 - - int64:4=1,1,8,3", YK_OK, NULL},
    {"Resize 1 in bool:1,1,4,4 - - int64:4=1,1,8,3 attr mode=s:linear", YK_INVAL, "bool"},
    {"Resize 1 in float32:1,1,4,4", YK_INVAL, "neither"},
    {"Resize 1 in float32:1,1,4,4 - float32:4=1,1,2,2 int64:4=1,1,8,8", YK_INVAL, "both"},
    {"Resize 1 in float32:1,1,4,4 - float32:4", YK_DEPENDS, "scales"},
    {"Resize 1 in float32:1,1,4,4 - - int64:4", YK_DEPENDS, "sizes"},
    {"Resize 1 in float32:1,1,4,4 - float32:2=2,2", YK_INVAL, "scales"},
    {"Resize 1 in float32:1,1,4,4 - float32:2,2=1,1,2,2", YK_INVAL, "scales"},
    {"Resize 1 in float32:1,1,4,4 - float32:4=1,1,0,2", YK_INVAL, "scale"},
    {"Resize 1 in float32:1,1,4,4 - float32:4=1,1,-1,2", YK_INVAL, "scale"},
    {"Resize 1 in float32:1,1,4,4 - float32:4=1,1,nan,2", YK_INVAL, "scale"},
    {"Resize 1 in float32:1,1,4,4 - float32:4=1,1,inf,2", YK_INVAL, "scale"},
    {"Resize 1 in float32:1,1,4,4 - float32:4=1,1,1e30,2", YK_LIMIT, "axis 2"},
    {"Resize 1 in float32:1,1,4,4 - float32:4=1,1,1e12,1e12", YK_LIMIT, "large"},
    {"Resize 1 in float32:1,1,4,4 - int64:4=1,1,2,2", YK_INVAL, "type"},
    {"Resize 1 in float32:1,1,4,4 - - int64:4=1,1,-8,3", YK_INVAL, "sizes"},
    {"Resize 1 in float32:1,1,4,4 - - int64:3=1,8,3", YK_INVAL, "sizes"},
    {"Resize 1 in float32:1,1,4,4 - - int64:4=1,1,9223372036854775807,2", YK_LIMIT, "large"},
    {"Resize 1 in float32:1,1,0,4 - - int64:4=1,1,2,2", YK_INVAL, "empty"},
    {"Resize 1 in float32:1,1,4,4 float32:7 float32:4=1,1,2,2", YK_INVAL, "roi"},
    {"Resize 1 in float32:1,1,4,4 - - int64:4=1,1,2,2 attr coordinate_transformation_mode=s:tf_crop_and_resize",
        YK_INVAL, "roi"},
    {"Resize 1 in float32:1,1,4,4 - - int64:4=1,1,2,2 attr coordinate_transformation_mode=s:half", YK_INVAL,
        "coordinate_transformation_mode"},
    {"Resize 1 in float32:1,1,4,4 - - int64:4=1,1,2,2 attr mode=s:area", YK_INVAL, "mode"},
    {"Resize 1 in float32:1,1,4,4 - - int64:4=1,1,2,2 attr nearest_mode=s:up", YK_INVAL, "nearest_mode"},
    {"Resize 1 in float32:1,1,4,4 - - int64:4=1,1,2,2 attr cubic_coeff_a=i:1", YK_INVAL, "cubic_coeff_a"},
    {"Resize 1 in float32:1,1,4,4 - - int64:4=1,1,2,2 attr exclude_outside=f:1", YK_INVAL, "exclude_outside"},
};

static const struct refusal einsum[] = {
    {"Einsum 1 in float32:2,3 float32:3,4 attr equation=s:ij,jk->ik", YK_OK, NULL},
    {"Einsum 1 in float32:2,3 float32:1,4 attr equation=s:ij,jk", YK_OK, NULL},
    {"Einsum 1 in float32:2,3,3 attr equation=s:...ii->...i", YK_OK, NULL},
    {"Einsum 1 in float32:2,3 float32:3,4", YK_INVAL, "equation"},
    {"Einsum 1 in float32:2,3 float32:4,5 attr equation=s:ij,jk->ik", YK_INVAL, "sizes"},
    {"Einsum 1 in float32:2,3 float32:3,4 attr equation=s:ij->ik", YK_INVAL, "terms"},
    {"Einsum 1 in float32:2,3 attr equation=s:ij,jk->ik", YK_INVAL, "terms"},
    {"Einsum 1 in float32:2,3 attr equation=s:ijk->ik", YK_INVAL, "labels"},
    {"Einsum 1 in float32:2,3 attr equation=s:i->i", YK_INVAL, "labels"},
    {"Einsum 1 in float32:2,3 attr equation=s:ij->ik", YK_INVAL, "no input"},
    {"Einsum 1 in float32:2,3 attr equation=s:ij->ii", YK_INVAL, "twice"},
    {"Einsum 1 in float32:2,3 attr equation=s:ij->ij->i", YK_INVAL, "unexpected"},
    {"Einsum 1 in float32:2,3 attr equation=s:ij->ij,", YK_INVAL, "unexpected"},
    {"Einsum 1 in float32:2,3 attr equation=s:i1->i", YK_INVAL, "unexpected"},
    {"Einsum 1 in float32:2,3 attr equation=s:i..->i", YK_INVAL, "unexpected"},
    {"Einsum 1 in float32:2,3 attr equation=s:......->i", YK_INVAL, "unexpected"},
    {"Einsum 1 in float32:2,3 attr equation=s:ij-", YK_INVAL, "unexpected"},
    {"Einsum 1 in float32:2,3 attr equation=s:abcdefghijk->a", YK_INVAL, "labels"},
    {"Einsum 1 in float32:1,3 attr equation=s:ii->i", YK_INVAL, "diagonal"},
    {"Einsum 1 in float32:2,3 int32:3,4 attr equation=s:ij,jk->ik", YK_INVAL, "type"},
    {"Einsum 1 in bool:2,3 attr equation=s:ij->i", YK_INVAL, "type"},
    {"Einsum 1 in float32:2,2,2,2,2 float32:2,2,2,2,2 attr equation=s:abcde,fghij->abcdefghij", YK_LIMIT, "axes"},
    {"Einsum 1 in float32:1048576 float32:1048576 float32:1048576 attr equation=s:a,b,c->", YK_LIMIT, "products"},
};

static const struct refusal sampling[] = {
    {"GridSample 1 in float32:2,3,4,4 float32:2,5,6,2", YK_OK, NULL},
    {"GridSample 1 in float32:2,3,4,4 float64:2,5,6,2 attr mode=s:bicubic padding_mode=s:reflection align_corners=i:1",
        YK_OK, NULL},
    {"GridSample 1 in float32:2,3,4,4 float32:1,5,6,2", YK_INVAL, "grid"},
    {"GridSample 1 in float32:2,3,4,4 float32:2,5,6,3", YK_INVAL, "grid"},
    {"GridSample 1 in float32:2,3,4,4 int64:2,5,6,2", YK_INVAL, "type"},
    {"GridSample 1 in float32:2,3,4 float32:2,5,6,2", YK_INVAL, "axes"},
    {"GridSample 1 in float32:2,3,0,4 float32:2,5,6,2", YK_INVAL, "empty"},
    {"GridSample 1 in float32:2,3,4,4 float32:2,5,6,2 attr mode=s:cubic", YK_INVAL, "mode"},
    {"GridSample 1 in float32:2,3,4,4 float32:2,5,6,2 attr padding_mode=i:0", YK_INVAL, "padding_mode"},
    {"GridSample 1 in float32:2,3,4,4 float32:2,5,6,2 attr align_corners=s:yes", YK_INVAL, "align_corners"},
    {"RoiAlign 1 in float32:2,3,4,4 float32:5,4 int64:5", YK_OK, NULL},
    {"RoiAlign 1 in float32:2,3,4,4 float32:5,4 int64:5 attr output_height=i:3 output_width=i:2 sampling_ratio=i:2",
        YK_OK, NULL},
    {"RoiAlign 1 in float32:2,3,4,4 float32:5,5 int64:5", YK_INVAL, "regions"},
    {"RoiAlign 1 in float32:2,3,4,4 float32:5,4 int64:4", YK_INVAL, "regions"},
    {"RoiAlign 1 in float32:2,3,4,4 float32:5,4 int32:5", YK_INVAL, "type"},
    {"RoiAlign 1 in float32:2,3,4,4 float64:5,4 int64:5", YK_INVAL, "type"},
    {"RoiAlign 1 in float32:2,3,4,0 float32:5,4 int64:5", YK_INVAL, "empty"},
    {"RoiAlign 1 in float32:2,3,4,4 float32:5,4 int64:5 attr output_height=i:0", YK_INVAL, "output_height"},
    {"RoiAlign 1 in float32:2,3,4,4 float32:5,4 int64:5 attr output_width=i:99999999999", YK_INVAL, "output_width"},
    {"RoiAlign 1 in float32:2,3,4,4 float32:5,4 int64:5 attr output_width=i:2147483647 output_height=i:2147483647",
        YK_LIMIT, "large"},
    {"RoiAlign 1 in float32:2,3,4,4 float32:5,4 int64:5 attr sampling_ratio=i:-1", YK_INVAL, "sampling_ratio"},
    {"RoiAlign 1 in float32:2,3,4,4 float32:5,4 int64:5 attr spatial_scale=f:inf", YK_INVAL, "spatial_scale"},
    {"RoiAlign 1 in float32:2,3,4,4 float32:5,4 int64:5 attr mode=s:min", YK_INVAL, "mode"},
    {"MaxRoiPool 1 in float32:2,3,4,4 float32:5,5 attr pooled_shape=ints:2,3", YK_OK, NULL},
    {"MaxRoiPool 1 in float32:2,3,4,4 float32:5,5", YK_INVAL, "pooled_shape"},
    {"MaxRoiPool 1 in float32:2,3,4,4 float32:5,5 attr pooled_shape=ints:2,0", YK_INVAL, "pooled_shape"},
    {"MaxRoiPool 1 in float32:2,3,4,4 float32:5,4 attr pooled_shape=ints:2,3", YK_INVAL, "region"},
    {"MaxUnpool 1 in float32:1,2,3,3 int64:1,2,3,3 attr kernel_shape=ints:2,2 strides=ints:2,2", YK_OK, NULL},
    {"MaxUnpool 1 in float32:1,2,3,3 int64:1,2,3,3 int64:4=1,2,7,8 attr kernel_shape=ints:2,2", YK_OK, NULL},
    {"MaxUnpool 1 in float32:1,2,3,3 int64:1,2,3,3", YK_INVAL, "kernel_shape"},
    {"MaxUnpool 1 in float32:1,2,3,3 int64:1,2,3,4 attr kernel_shape=ints:2,2", YK_INVAL, "indices"},
    {"MaxUnpool 1 in float32:1,2,3,3 int64:1,2,3,3 int64:4=1,3,7,8 attr kernel_shape=ints:2,2", YK_INVAL,
        "output_shape"},
    {"MaxUnpool 1 in float32:1,2,3,3 int64:1,2,3,3 int64:4=1,2,-7,8 attr kernel_shape=ints:2,2", YK_INVAL, "axis 2"},
    {"MaxUnpool 1 in float32:1,2,3,3 int64:1,2,3,3 attr kernel_shape=ints:2,2 pads=ints:9,0,0,0", YK_INVAL, "axis 2"},
    {"MaxUnpool 1 in float32:1,2,0,3 int64:1,2,0,3 attr kernel_shape=ints:2,2", YK_INVAL, "empty"},
    {"MaxUnpool 1 in float32:1,2,3,3 int64:1,2,3,3 attr kernel_shape=ints:2,2 strides=ints:2", YK_INVAL, "strides"},
    {"LpPool 1 in float32:1,2,6,6 attr kernel_shape=ints:2,2 p=i:3", YK_OK, NULL},
    {"LpPool 1 in float32:1,2,6,6 attr kernel_shape=ints:2,2 p=i:0", YK_INVAL, "p"},
    {"LpPool 1 in float32:1,2,6,6 attr kernel_shape=ints:2,2 p=f:2", YK_INVAL, "p"},
    {"LpPool 1 in float32:1,2,6,6 attr kernel_shape=ints:7,2", YK_INVAL, "kernel"},
    {"GlobalLpPool 1 in float32:1,2,6,6 attr p=i:-1", YK_INVAL, "p"},
    {"ReverseSequence 1 in int8:4,3,2 int64:3", YK_OK, NULL},
    {"ReverseSequence 1 in int8:4,3,2 int64:4 attr batch_axis=i:0 time_axis=i:1", YK_OK, NULL},
    {"ReverseSequence 1 in int8:4,3,2 int64:4", YK_INVAL, "sequence_lens"},
    {"ReverseSequence 1 in int8:4,3,2 int64:3 attr batch_axis=i:2", YK_INVAL, "batch_axis"},
    {"ReverseSequence 1 in int8:4,3,2 int64:4 attr batch_axis=i:0", YK_INVAL, "batch_axis"},
    {"ReverseSequence 1 in int8:4 int64:4", YK_INVAL, "axes"},
};

static const struct refusal signals[] = {
    {"DFT 1 in float32:2,8,1", YK_OK, NULL},
    {"DFT 1 in float32:2,8,2 int64:=5 attr axis=i:-2 inverse=i:1", YK_OK, NULL},
    {"DFT 1 in float32:2,8,1 attr onesided=i:1", YK_OK, NULL},
    {"DFT 1 in float32:2,8,3", YK_INVAL, "last axis"},
    {"DFT 1 in float32:2,8,1 attr axis=i:2", YK_INVAL, "axis"},
    {"DFT 1 in float32:2,8,1 attr axis=i:3", YK_INVAL, "axis"},
    {"DFT 1 in float32:2,8,2 attr onesided=i:1", YK_INVAL, "onesided"},
    {"DFT 1 in float32:2,8,1 int64:=0", YK_INVAL, "dft_length"},
    {"DFT 1 in float32:2,8,1 int64:2=4,5", YK_INVAL, "dft_length"},
    {"DFT 1 in float32:2,8,1 int64:1", YK_DEPENDS, "dft_length"},
    {"DFT 1 in float32:2,0,1", YK_INVAL, "axis"},
    {"DFT 1 in int32:2,8,1", YK_INVAL, "type"},
    {"STFT 1 in float32:1,32,1 int64:=4 - int64:=8", YK_OK, NULL},
    {"STFT 1 in float32:1,32 int64:=4 float32:8", YK_OK, NULL},
    {"STFT 1 in float32:1,32,1 int64:=4", YK_INVAL, "window"},
    {"STFT 1 in float32:1,32,1 int64:=0 - int64:=8", YK_INVAL, "frame_step"},
    {"STFT 1 in float32:1,32,1 int64:=4 - int64:=33", YK_INVAL, "frame"},
    {"STFT 1 in float32:1,32,1 int64:=4 float32:8 int64:=9", YK_INVAL, "frame_length"},
    {"STFT 1 in float32:1,32,1 int64:=4 float64:8", YK_INVAL, "type"},
    {"STFT 1 in float32:1,32,1 int64:=4 float32:0", YK_INVAL, "frame"},
    {"STFT 1 in float32:1,32,2 int64:=4 float32:8", YK_INVAL, "onesided"},
    {"STFT 1 in float32:1,32,4 int64:=4 float32:8", YK_INVAL, "last axis"},
    {"HannWindow 1 in int64:=8", YK_OK, NULL},
    {"HammingWindow 1 in int32:1=8 attr output_datatype=i:11 periodic=i:0", YK_OK, NULL},
    {"BlackmanWindow 1 in int64:=-1", YK_INVAL, "size"},
    {"BlackmanWindow 1 in int64:1", YK_DEPENDS, "size"},
    {"HannWindow 1 in float32:1", YK_INVAL, "integers"},
    {"HannWindow 1 in int64:=8 attr output_datatype=i:9", YK_INVAL, "output_datatype"},
    {"HannWindow 1 in int64:=8 attr output_datatype=i:8", YK_INVAL, "output_datatype"},
    {"MelWeightMatrix 1 in int64:=8 int64:=16 int64:=8192 float32:1=0 float32:1=4096", YK_OK, NULL},
    {"MelWeightMatrix 1 in int64:=0 int64:=16 int64:=8192 float32:1=0 float32:1=4096", YK_INVAL, "num_mel_bins"},
    {"MelWeightMatrix 1 in int64:=8 int64:=-16 int64:=8192 float32:1=0 float32:1=4096", YK_INVAL, "dft_length"},
    {"MelWeightMatrix 1 in int64:=8 int64:=16 int64:=8192 float32:2=0,0 float32:1=4096", YK_INVAL, "one number"},
    {"MelWeightMatrix 1 in int64:=8 int64:=16 float32:1=8192 float32:1=0 float32:1=4096", YK_INVAL, "type"},
    {"MelWeightMatrix 1 in int64:=2147483640 int64:=2147483647 int64:=1 float32:1=0 float32:1=9", YK_LIMIT, "large"},
};

static int check(const struct refusal *r, size_t n)
{
    int wrong = 0;
    for (size_t i = 0; i < n; i++) {
        struct yk_diag why = {""};
        yk_err err = op_line_infer(r[i].line, &why);
        if (err == r[i].err && (!r[i].word || strstr(why.text, r[i].word)))
            continue;
        print_error("%s: %d '%s'\n", r[i].line, err, why.text);
        wrong++;
    }
    return wrong;
}

#define TEST(table)                                         \
    static void test_##table(void **state)                  \
    {                                                       \
        (void)state;                                        \
        assert_int_equal(check(table, YK_COUNT(table)), 0); \
    }
TEST(recurrent)
TEST(deconv)
TEST(resize)
TEST(einsum)
TEST(sampling)
TEST(signals)

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_recurrent), cmocka_unit_test(test_deconv),
        cmocka_unit_test(test_resize), cmocka_unit_test(test_einsum), cmocka_unit_test(test_sampling),
        cmocka_unit_test(test_signals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
