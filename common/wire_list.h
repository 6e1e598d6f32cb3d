/* Every message, listed once: structs, encoder, decoder and dispatch in wire.h / wire.c are made from these lists.
 *
 * A field is F(kind, name, sub). Kinds and the C member they make:
 *   I64 int64_t · F64 double · BOOL bool · STR const char * (never NULL after decoding, "" if absent)
 *   BIN struct wire_bin · STRS struct wire_strs · I64S struct wire_i64s · F64S struct wire_f64s
 *   ONE struct wire_<sub> · LIST struct { struct wire_<sub> *at; size_t n; }
 * On the wire a message is a msgpack map from field name to value. Absent fields are zero, unknown keys are ignored:
 * that is how older and newer minors interoperate. A field is never renamed or given another meaning. */
#ifndef YK_WIRE_LIST_H
#define YK_WIRE_LIST_H

/* clang-format off */

/* ---- parts of messages (order: used before use) ---- */
#define WIRE_PART_backend(F) \
    F(STR, name, _)           /* "blas" */ \
    F(STR, isa, _)            /* what follows '@' in its forms */ \
    F(BOOL, exact, _) \
    F(F64, gflops, _)         /* measured GEMM speed, all threads */ \
    F(F64, gbytes_per_s, _)   /* measured copy speed */ \
    F(STRS, ops, _)           /* op names it claims at all */
#define WIRE_PART_device(F) \
    F(STR, class_name, _)     /* phone | workstation | cloud */ \
    F(STR, os, _) \
    F(I64, cores, _) \
    F(I64, threads, _)        /* compute threads in use */ \
    F(I64, memory_bytes, _)   /* budget for stages; 0 means unknown, and then nothing is placed there */ \
    F(BOOL, emulated, _) \
    F(LIST, backends, backend) \
    F(STRS, refused, _)       /* why backends from outside are not among them: failed the self-test, or taken out later */
#define WIRE_PART_sensors(F) \
    F(STR, heat, _)           /* nominal | fair | serious | critical */ \
    F(F64, temperature_celsius, _) /* NaN if unknown */ \
    F(F64, battery_frac, _)   /* NaN: no battery */ \
    F(BOOL, charging, _) \
    F(I64, memory_available_bytes, _) \
    F(F64, load, _)
#define WIRE_PART_range(F) \
    F(I64, first, _) \
    F(I64, last, _)           /* inclusive */
#define WIRE_PART_size(F) \
    F(STR, name, _)           /* named dimension of the graph */ \
    F(I64, value, _)
/* Uploaded data of one graph input of a run. */
#define WIRE_PART_input(F) \
    F(I64, value, _)          /* value id in the graph */ \
    F(STR, data, _)           /* blob SHA-256 (npy) */ \
    F(BOOL, whole, _)         /* every microbatch takes all of it; else its first axis is the samples */
#define WIRE_PART_stage(F) \
    F(I64, index, _)          /* in its pipeline */ \
    F(LIST, nodes, range)     /* canonical order */ \
    F(STRS, forms, _)         /* one per node of the graph, "" where the node is not in this stage */ \
    F(I64, depth, _)          /* microbatches in flight */ \
    F(I64, pair, _)           /* of a training: the stage with the other half of its work; itself if it has both */
/* A directed edge that this agent sends on or receives from. Stage -1 is the source (graph inputs and outputs). */
#define WIRE_PART_edge(F) \
    F(I64, id, _)             /* unique in the pipeline */ \
    F(I64, from, _) \
    F(I64, to, _) \
    F(I64S, also, _)          /* other stages of the receiving agent that read some of the values, ascending */ \
    F(I64S, values, _)        /* value ids of the graph, ascending */ \
    F(STR, codec, _)          /* fp32 | fp16 | int8 */ \
    F(STR, peer, _)           /* agent id of the other end; own id if local */ \
    F(STRS, urls, _)          /* where this agent reaches the peer, best first; empty: the peer dials */ \
    F(BIN, ticket, _)         /* 16 bytes, one use, proves the edge to the other end */ \
    F(I64, credits, _)        /* slots at the receiver */ \
    F(BOOL, sums, _)          /* of a training: sums of gradients of weights that both stages use, behind each step */
#define WIRE_PART_node_time(F) \
    F(I64, node, _) \
    F(STR, form, _) \
    F(I64, size, _)           /* value of the batch dimension */ \
    F(F64, ms, _) \
    F(F64, prepare_ms, _) \
    F(I64, packed_bytes, _) \
    F(I64, workspace_bytes, _)
#define WIRE_PART_tensor(F) \
    F(I64, value, _)          /* value id in the graph */ \
    F(STR, dtype, _)          /* of the value, before the codec */ \
    F(I64S, dims, _) \
    F(STR, codec, _)          /* what was used: raw | fp16 | int8 */ \
    F(F64S, scales, _) \
    F(I64, offset, _)         /* into the body, 64-byte aligned */ \
    F(I64, bytes, _)

/* ---- of training (values are of the training graph) ---- */
#define WIRE_PART_param(F) \
    F(I64, value, _)          /* a weight that is trained */ \
    F(I64S, uses, _)          /* graph outputs with a gradient of it each, in the order of the fold */
#define WIRE_PART_state(F) \
    F(I64, value, _)          /* a running statistic */ \
    F(I64, output, _)         /* graph output with its next value */
/* A tensor of a checkpoint set: a weight (slot -1) or what the optimizer keeps for it. */
#define WIRE_PART_kept(F) \
    F(I64, value, _) F(I64, slot, _) \
    F(STR, hash, _)           /* in load: the blob */ \
    F(I64, offset, _)         /* in part: in the body, 64-byte aligned */ \
    F(I64, bytes, _)
#define WIRE_PART_training(F) \
    F(STR, config, _)         /* JSON of train_config.h; "" is no training */ \
    F(LIST, params, param) F(LIST, states, state) \
    F(I64, stay, _)           /* so many of the last graph outputs stay with the stage that makes them */ \
    F(I64, loss, _) F(I64, scores, _) /* graph outputs */ \
    F(I64, outputs, _) F(I64, n_outputs, _) /* the model's own: the first graph output, and how many */ \
    F(I64, first_backward, _) /* node */ \
    F(I64, save_every, _)     /* steps between two checkpoint sets; the last step is always saved */ \
    F(I64, target, _) F(I64, divisor, _) /* graph inputs */ \
    F(I64, batch, _)          /* samples of a step */ \
    F(I64, step, _)           /* the next one */ \
    F(LIST, kept, kept)       /* what it goes on from; absent ones are as the graph and the optimizer begin */

/* Something that took time on an agent: of a stage, of its edges, or of the source (stage -1). */
#define WIRE_PART_span(F) \
    F(STR, what, _)           /* forward | backward | both | wait | step | read | send | receive */ \
    F(I64, stage, _)          /* that ran, or whose output travels */ \
    F(STR, peer, _)           /* send, receive: the agent at the other end */ \
    F(I64, microbatch, _)     /* of a training: in its step */ \
    F(I64, begin_us, _) F(I64, end_us, _) /* behind at_us */

#define WIRE_PARTS(P) \
    P(backend) P(device) P(sensors) P(range) P(size) P(input) P(stage) P(edge) P(node_time) P(tensor) P(param) \
    P(state) P(kept) P(training) P(span)

/* ---- messages ---- */
/* First frame of every connection, either role. kind: "control" (agent <-> yoked) or "data". */
#define WIRE_hello(F) \
    F(STR, kind, _) \
    F(I64, version_major, _) F(I64, version_minor, _) \
    F(STRS, features, _) F(STRS, job_kinds, _) \
    F(STR, agent, _)          /* stable id of the sender, 32 hex digits; "yoked" for the scheduler */ \
    F(STR, name, _) \
    F(BIN, nonce, _) \
    F(STRS, urls, _)          /* where the sender can be dialled for data */ \
    F(ONE, device, device) F(ONE, sensors, sensors) \
    F(I64, term, _)           /* last term the agent obeyed */ \
    F(STR, purpose, _)        /* data: "edge" | "probe" | "blob" */ \
    F(BIN, ticket, _)         /* data: from yoked */ \
    F(I64, generation, _) F(I64, edge, _) /* data, purpose edge */
#define WIRE_welcome(F) \
    F(I64, version_major, _) F(I64, version_minor, _) F(STRS, features, _) \
    F(BIN, nonce, _)          /* the hello's, back */ \
    F(I64, term, _) F(I64, lease_ms, _) F(I64, ping_ms, _) F(STR, name, _)
#define WIRE_refuse(F) F(STR, error, _) F(STR, text, _) F(I64, version_major, _) F(I64, version_minor, _)
/* Liveness, both ways. An agent's ping carries what it believes; yoked answers pong with its term. */
#define WIRE_ping(F) F(I64, seq, _) F(I64, term, _) F(ONE, sensors, sensors) F(I64S, generations, _)
#define WIRE_pong(F) F(I64, seq, _) F(I64, term, _) \
    F(I64, now_us, _)         /* of yoked's clock, which has no beginning that means anything; 0: not told */
/* yoked -> agent: measure the path to a peer. Bounded in time and traffic. */
#define WIRE_probe(F) \
    F(I64, id, _) F(I64, term, _) F(STR, peer, _) F(STRS, urls, _) F(BIN, ticket, _) \
    F(I64, budget_ms, _) F(I64, budget_bytes, _)
/* Rates in bytes/s, 0 if not measured. to: sender of the result -> peer. both: sum of the two while both ways are busy. */
#define WIRE_probe_result(F) \
    F(I64, id, _) F(STR, peer, _) F(STR, error, _) F(STR, text, _) F(STR, url, _) \
    F(F64, to_bytes_per_s, _) F(F64, from_bytes_per_s, _) F(F64, both_bytes_per_s, _) \
    F(F64, rtt_us, _) F(F64, cpu_ns_per_byte, _)
/* yoked -> agent: which tickets peers will show (probe or edge). */
#define WIRE_expect(F) F(I64, term, _) F(STR, purpose, _) F(STR, peer, _) F(BIN, ticket, _) F(I64, ttl_ms, _)
/* yoked -> agent: time every node of a graph in every form, at these batch sizes. */
#define WIRE_profile(F) F(I64, id, _) F(I64, term, _) F(STR, graph, _) F(I64S, sizes, _) F(I64, budget_ms, _) \
    F(LIST, others, size)     /* of the other named dimensions; 1 where absent */ \
    F(BOOL, training, _)      /* the weights change between runs */
#define WIRE_profile_result(F) \
    F(I64, id, _) F(STR, graph, _) F(STR, error, _) F(STR, text, _) F(LIST, times, node_time) \
    F(BOOL, more, _)          /* further messages with the same id follow */
/* yoked -> agent: hold these stages of a pipeline, ready to run. */
#define WIRE_load(F) \
    F(I64, term, _) F(I64, generation, _) F(STR, job, _) F(STR, kind, _) \
    F(STR, graph, _)          /* SHA-256 of the graph blob; the agent fetches what it lacks */ \
    F(LIST, sizes, size)      /* maximum of each named dimension; the batch dimension's is the microbatch */ \
    F(STR, source, _)         /* agent id */ \
    F(LIST, stages, stage) F(LIST, edges, edge) \
    F(I64, depth, _)          /* microbatches the source keeps in flight */ \
    F(I64, threads, _)        /* 0: the agent's own */ \
    F(I64, timeout_ms, _)     /* remaining */ \
    F(ONE, training, training)
#define WIRE_loaded(F) \
    F(I64, generation, _) F(STR, error, _) F(STR, text, _) \
    F(I64, memory_bytes, _)   /* that it holds; where it was refused for memory: that were lacking, 0 not known */ \
    F(F64, ms, _) \
    F(I64, fetched_bytes, _)
#define WIRE_unload(F) F(I64, term, _) F(I64, generation, _)
/* yoked -> source: feed samples. Microbatch i holds samples [i*microbatch, ...) of [first, first+count), remainder last. */
#define WIRE_run(F) \
    F(I64, term, _) F(I64, generation, _) F(STR, job, _) \
    F(STR, data, _)           /* blob SHA-256 (npy) or NAME under a data_root */ \
    F(BOOL, blob, _) F(STR, labels, _) /* blob SHA-256 of labels (npy), "" none */ \
    F(LIST, inputs, input)    /* uploaded, every graph input; empty: data is that of the first and only one */ \
    F(STR, split, _) F(F64S, mean, _) F(F64S, std, _) \
    F(STR, preprocess, _)     /* JSON, what becomes of images; "" nothing */ \
    F(I64, first, _) F(I64, count, _) /* count 0: to the end */ \
    F(I64, microbatch, _) \
    F(I64S, done, _)          /* microbatches that already have a result, as [first, last] pairs */ \
    F(BOOL, want_outputs, _) F(BOOL, want_accuracy, _) F(I64, timeout_ms, _) \
    F(I64, batch, _) F(I64, step, _) /* of a training: samples of a step, and the step to begin with; count is 0 */ \
    F(BOOL, images_only, _)   /* preprocess is the client's wish, which data without images does not fulfil */ \
    F(F64S, black, _)         /* uploaded samples are images: a black pixel of them, by channel; empty: not told */ \
    F(BOOL, nhwc, _)          /* of those: channels last */
/* source -> yoked: the data set was opened. */
#define WIRE_run_started(F) F(I64, generation, _) F(STR, job, _) F(I64, samples, _) F(I64, microbatches, _) \
    F(I64, steps, _) F(I64, epoch_steps, _) /* of a training: all, and of one epoch; samples are those of an epoch */ \
    F(STR, note, _)           /* what the source decided without being asked, for people; "" nothing */ \
    F(BOOL, no_test, _)       /* of a training: its data set has no test split */
/* source -> yoked, on the control connection if no outputs are wanted, else head of a data stream whose body is the
 * tensors at their offsets (64-byte aligned); it ends with the last byte of the last one. */
#define WIRE_result(F) \
    F(I64, generation, _) F(STR, job, _) F(I64, microbatch, _) F(I64, first, _) F(I64, count, _) \
    F(I64, correct, _)        /* -1: no labels */ \
    F(LIST, tensors, tensor)
/* source -> yoked: every microbatch of a step is through. */
#define WIRE_step(F) F(I64, generation, _) F(STR, job, _) F(I64, step, _) F(I64, samples, _) F(F64, loss, _) \
    F(I64, correct, _)        /* -1: not counted */ \
    F(F64, ms, _)             /* since the step before it was through */
/* Square sums of an agent's gradients of a step, by parameter; yoked answers every agent of the generation with the
 * norm over all of them. Only where the norm is clipped. */
#define WIRE_norms(F) F(I64, generation, _) F(I64, step, _) F(I64S, values, _) F(F64S, sums, _)
#define WIRE_norm(F) F(I64, term, _) F(I64, generation, _) F(I64, step, _) F(F64, norm, _)
/* agent -> yoked, before the loss of that step can be known: the first tensor of a stage that is no number. last: the
 * training cannot go on, because of a parameter. */
#define WIRE_bad(F) \
    F(I64, generation, _) F(I64, stage, _) F(I64, step, _) F(I64, microbatch, _) F(STR, text, _) F(BOOL, last, _)
/* agent -> yoked, head of a data stream on the blob connection: what it holds behind `step` steps. */
#define WIRE_part(F) F(I64, generation, _) F(STR, job, _) F(I64, step, _) F(LIST, kept, kept) F(I64, bytes, _)
/* yoked -> source of a training: begin no other step. It answers with the one that it will not begin, behind which all
 * stages come to rest. */
#define WIRE_halt(F) F(I64, term, _) F(I64, generation, _)
#define WIRE_halted(F) F(I64, generation, _) F(I64, step, _)
/* yoked -> stages of a training: a set behind `step` steps too, whose tensors stay in the weight cache as they are
 * likely to be wanted here again (0: none); and one every `every` steps from now on (0: as it was). */
#define WIRE_keep(F) F(I64, term, _) F(I64, generation, _) F(I64, step, _) F(I64, every, _)
/* yoked -> source of a training that holds samples out: judge on them what an epoch (from 1) has made, a file of
 * content. It answers with the mean loss and how many have their class; error: it was not judged. */
#define WIRE_judge(F) F(I64, term, _) F(I64, generation, _) F(I64, epoch, _) F(STR, model, _)
#define WIRE_judged(F) \
    F(I64, generation, _) F(I64, epoch, _) F(I64, samples, _) F(I64, correct, _) /* -1: not counted */ \
    F(F64, loss, _) F(F64, ms, _) F(STR, error, _) F(STR, text, _)
#define WIRE_run_done(F) F(I64, generation, _) F(STR, job, _) F(STR, error, _) F(STR, text, _) F(F64, ms, _)
#define WIRE_cancel(F) F(I64, term, _) F(I64, generation, _) F(STR, job, _)
/* agent -> yoked, at most twice a second per stage: what was measured since the last one. */
#define WIRE_stage_stats(F) \
    F(I64, generation, _) F(I64, stage, _) F(I64, microbatches, _) F(F64, compute_ms, _) F(F64, wait_ms, _) \
    F(I64, sent_bytes, _) F(F64, send_ms, _) F(F64, codec_error, _) /* largest relative RMS of an encoded tensor */ \
    F(I64, nonfinite, _)      /* tensors that went raw because of it */ \
    F(I64, late, _)           /* emulated device missed its pace this often */
/* agent -> yoked: what an agent did in a sampled step (0 in a batch job), in parts. at_us: on yoked's clock. */
#define WIRE_spans(F) F(I64, generation, _) F(I64, step, _) F(I64, at_us, _) F(LIST, spans, span)
/* agent -> yoked: a loaded pipeline cannot go on here (peer lost, kernel failed, bad frame ...). */
#define WIRE_stage_failed(F) F(I64, generation, _) F(I64, stage, _) F(STR, peer, _) F(STR, error, _) F(STR, text, _)
/* agent -> yoked before a clean exit. */
#define WIRE_leave(F) F(STR, text, _)
/* Data connection, purpose blob: content by SHA-256. The answer is a data stream headed by blob, or refuse. */
#define WIRE_blob_get(F) F(I64, id, _) F(STR, hash, _)
#define WIRE_blob(F) F(I64, id, _) F(STR, hash, _) F(I64, bytes, _)
#define WIRE_blob_refused(F) F(I64, id, _) F(STR, hash, _) F(STR, error, _) F(STR, text, _)
/* yoked -> agent: which of these contents are in its cache? hashes: SHA-256, 32 bytes each. It answers with a bit for
 * each, the first in the lowest of the first byte. */
#define WIRE_blobs_ask(F) F(I64, id, _) F(I64, term, _) F(BIN, hashes, _)
#define WIRE_blobs_held(F) F(I64, id, _) F(BIN, held, _)
/* Data connection, purpose edge: head of a stream that carries one microbatch over one edge. */
#define WIRE_microbatch(F) \
    F(I64, generation, _) F(I64, edge, _) F(I64, microbatch, _) F(I64, count, _) /* samples */ \
    F(BOOL, backward, _) F(LIST, sizes, size) F(LIST, tensors, tensor) F(I64, body_bytes, _) \
    F(I64, step, _) F(I64, index, _) F(I64, of, _) /* of a training: which of the step's `of` microbatches */ \
    F(I64, steps, _)          /* of the whole training */
/* Receiver -> sender: n more slots are free. */
#define WIRE_credit(F) F(I64, generation, _) F(I64, edge, _) F(I64, n, _)
/* Data connection, purpose probe. dir: "to" (dialler sends), "from", "both"; then streams headed by probe_data. */
#define WIRE_probe_start(F) F(STR, dir, _) F(I64, budget_ms, _) F(I64, budget_bytes, _)
#define WIRE_probe_data(F) F(I64, bytes, _)
#define WIRE_probe_sum(F) F(STR, dir, _) F(I64, bytes, _) F(F64, ms, _) F(F64, cpu_ns_per_byte, _)

/* M(id, name). Ids are never reused. */
#define WIRE_MESSAGES(M) \
    M(1, hello) M(2, welcome) M(3, refuse) M(4, ping) M(5, pong) \
    M(10, probe) M(11, probe_result) M(12, expect) M(13, profile) M(14, profile_result) \
    M(20, load) M(21, loaded) M(22, unload) M(23, run) M(24, run_started) M(25, result) M(26, run_done) M(27, cancel) \
    M(28, stage_stats) M(29, stage_failed) M(30, leave) M(31, step) M(32, norms) M(33, norm) M(34, part) M(35, spans) \
    M(36, halt) M(37, halted) M(38, keep) M(39, bad) \
    M(40, blob_get) M(41, blob) M(42, blob_refused) M(43, microbatch) M(44, credit) \
    M(50, probe_start) M(51, probe_data) M(52, probe_sum) M(53, judge) M(54, judged) \
    M(55, blobs_ask) M(56, blobs_held)

#endif
