/* The whole scheduler on virtual time with scripted agents: jobs end well, or clearly, whatever is lost on the way. */
#include "tests/sched_fixture.h"

static void begin(struct here *h)
{
    add_model(h);
    h->pc.node_ms = h->phone.node_ms = h->cloud.node_ms = 0.2; /* a job of 1000 samples takes seconds */
    fake_start(&h->pc);
    fake_start(&h->phone);
    run_ms(h, 3000);
    assert_true(h->pc.joined && h->phone.joined);
}

static void batch_ends_well(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit(h, BATCH "}");
    wait_over(h, id, 120000);
    expect_done(h, id, 1000);
    expect_output(h, id, 1000);
    struct json *doc;
    const struct json *row = job_row(h, id, &doc);
    assert_true(json_f64(json_find(row, "accuracy"), 0) == 0.999);
    assert_true(json_f64(json_find(row, "images_per_s"), 0) > 0);
    assert_int_equal(json_i64(json_find(row, "replans"), -1), 0);
    assert_int_equal(json_kind(json_find(row, "error")), JSON_NULL);
    json_free(doc);
    assert_int_equal(sched_jobs_open(h->s), 0);
    /* What was predicted and what was measured stand side by side. */
    store_list(sched_store(h->s), "plan_accuracy", 0, on_json, h);
    wait_answer(h, 1000);
    doc = answer_json(h);
    assert_int_equal(json_len(doc), 1);
    assert_true(json_f64(json_find(json_at(doc, 0), "measured_ms"), 0) > 0);
    json_free(doc);
    /* Nothing stays loaded for ever. */
    run_ms(h, 60000);
    for (int i = 0; i < FAKE_LOADS; i++)
        assert_int_equal(h->pc.load[i].generation, 0);
}

/* Spans that agents tell become a picture; what cannot be is left out, whoever says it. */
static void spans_are_checked(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit(h, BATCH "}");
    wait_over(h, id, 120000);
    int64_t far = INT64_MAX / 4, now = net_now_us(h->net);
    struct wire_span spans[] = {
        {.what = "forward", .stage = 0, .peer = "", .microbatch = 3, .begin_us = 100, .end_us = 2100},
        {.what = "forward", .stage = 99, .peer = "", .end_us = 1},
        {.what = "forward", .stage = -2, .peer = "", .end_us = 1},
        {.what = "dance", .stage = 0, .peer = "", .end_us = 1},
        {.what = "", .stage = 0, .peer = "", .end_us = 1},
        {.what = "send", .stage = 0, .peer = "nobody", .end_us = 1},
        {.what = "wait", .stage = 0, .peer = "", .begin_us = 5, .end_us = 4},
        {.what = "wait", .stage = 0, .peer = "", .begin_us = -5, .end_us = 4},
        {.what = "wait", .stage = 0, .peer = "", .end_us = far},
        {.what = "wait", .stage = 0, .peer = "", .microbatch = -2, .end_us = 1},
        {.what = "send", .stage = 0, .peer = h->phone.id, .microbatch = 3, .begin_us = 2100, .end_us = 3100},
    };
    struct wire_spans w = {.generation = h->pc.generation, .at_us = now, .spans = {spans, YK_COUNT(spans)}};
    assert_int_equal(chan_send(h->pc.control, WIRE_TYPE_spans, &w), YK_OK);
    w.step = -1;
    assert_int_equal(chan_send(h->pc.control, WIRE_TYPE_spans, &w), YK_OK);
    w.step = 0;
    for (int i = 0; i < 3; i++) { /* before the job, far from now, of no generation */
        w.at_us = i == 0 ? 1 : i == 1 ? far : now;
        w.generation = i == 2 ? 12345 : h->pc.generation;
        assert_int_equal(chan_send(h->pc.control, WIRE_TYPE_spans, &w), YK_OK);
    }
    run_ms(h, 100);
    store_timeline(sched_store(h->s), id, -1, on_json, h);
    wait_answer(h, 1000);
    struct json *doc = answer_json(h);
    assert_int_equal(json_len(json_find(doc, "events")), 2);
    assert_string_equal(json_str(json_at(json_find(doc, "rows"), 0), ""), "agent pc");
    assert_string_equal(json_str(json_at(json_find(doc, "rows"), 1), ""), "link pc to phone");
    json_free(doc);
}

/* Outputs come over another connection than run_started, and may overtake it. */
static void results_before_run_started(void **state)
{
    struct here *h = *state;
    h->pc.started_late_ms = 100;
    begin(h);
    int64_t id = submit(h, BATCH ",\"microbatch\":10}");
    wait_over(h, id, 30000);
    expect_done(h, id, 1000);
    expect_output(h, id, 1000);
    assert_int_equal(h->pc.results, 100);
    struct json *doc;
    assert_int_equal(json_i64(json_find(job_row(h, id, &doc), "replans"), -1), 0);
    json_free(doc);
}

static void samples_that_do_not_divide(void **state)
{
    struct here *h = *state;
    h->pc.samples = 997;
    begin(h);
    int64_t id = submit(h, BATCH ",\"microbatch\":10}");
    wait_over(h, id, 120000);
    expect_done(h, id, 997);
    expect_output(h, id, 997);
    h->pc.samples = 1;
    id = submit(h, BATCH "}");
    wait_over(h, id, 120000);
    expect_done(h, id, 1);
    expect_output(h, id, 1);
}

static void profile_is_kept(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit(h, BATCH "}");
    wait_over(h, id, 120000);
    int asked = h->pc.profiles;
    assert_true(asked >= 1);
    id = submit(h, BATCH "}");
    wait_over(h, id, 120000);
    close_sched(h);
    open_sched(h);
    run_ms(h, 3000);
    assert_true(h->pc.joined);
    id = submit(h, BATCH "}");
    wait_over(h, id, 120000);
    expect_done(h, id, 1000);
    assert_int_equal(h->pc.profiles, asked);
}

static void forced_two_stages(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit_forced(h, "pc", "phone");
    wait_over(h, id, 120000);
    expect_done(h, id, 1000);
    expect_output(h, id, 1000);
    assert_int_equal(h->phone.loads, 1);
    assert_int_equal(h->pc.results, 125);
}

/* The second stage dies in the middle: another plan, and no sample twice. */
static void agent_lost(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit_forced(h, "pc", "phone");
    wait_results(h, &h->pc, 40, 60000);
    fake_kill(&h->phone);
    wait_over(h, id, 120000);
    expect_done(h, id, 1000);
    expect_output(h, id, 1000);
    assert_int_equal(h->pc.results, 125);
    struct json *doc;
    const struct json *row = job_row(h, id, &doc);
    assert_true(json_i64(json_find(row, "replans"), 0) >= 1);
    assert_int_equal(json_kind(json_find(row, "error")), JSON_NULL);
    json_free(doc);
}

/* It hangs with its connections open, as by SIGSTOP or a silent drop: its lease finds it. */
static void agent_silent(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit_forced(h, "pc", "phone");
    wait_results(h, &h->pc, 40, 60000);
    fake_freeze(&h->phone);
    run_ms(h, 5000);
    assert_false(job_over(h, id));
    wait_over(h, id, 30000);
    expect_done(h, id, 1000);
    expect_output(h, id, 1000);
    assert_int_equal(h->pc.results, 125);
}

static void source_lost_and_back(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit_forced(h, "pc", "phone");
    wait_results(h, &h->pc, 40, 60000);
    fake_kill(&h->pc);
    run_ms(h, 5000);
    assert_false(job_over(h, id));
    fake_start(&h->pc);
    wait_over(h, id, 120000);
    expect_done(h, id, 1000);
    expect_output(h, id, 1000);
}

static void source_never_back(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit_forced(h, "pc", "phone");
    wait_results(h, &h->pc, 40, 60000);
    fake_kill(&h->pc);
    wait_over(h, id, 60000);
    expect_state(h, id, "failed");
    struct json *doc;
    const struct json *row = job_row(h, id, &doc);
    assert_non_null(strstr(json_str(json_find(row, "error"), ""), "pc"));
    json_free(doc);
}

static void both_lost(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit_forced(h, "pc", "phone");
    wait_results(h, &h->pc, 40, 60000);
    fake_kill(&h->pc);
    fake_freeze(&h->phone);
    run_ms(h, 9000);
    h->phone.frozen = false;
    fake_start(&h->phone);
    fake_start(&h->pc);
    wait_over(h, id, 120000);
    expect_done(h, id, 1000);
    expect_output(h, id, 1000);
}

static void again_and_again(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit_forced(h, "pc", "phone");
    for (int i = 1; i <= 12; i++) {
        wait_results(h, &h->pc, i * 9, 120000);
        fake_kill(&h->phone);
        run_ms(h, 20);
        fake_start(&h->phone);
        run_ms(h, 20);
    }
    wait_over(h, id, 300000);
    expect_done(h, id, 1000);
    expect_output(h, id, 1000);
}

/* The daemon itself is gone and comes back on the same database. */
static void restart(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit_forced(h, "pc", "phone");
    wait_results(h, &h->pc, 60, 60000);
    run_ms(h, 300);
    int before = h->pc.results;
    int64_t term = h->pc.term;
    close_sched(h);
    run_ms(h, 2000);
    open_sched(h);
    wait_over(h, id, 120000);
    expect_done(h, id, 1000);
    expect_output(h, id, 1000);
    assert_true(h->pc.term > term);
    /* What was known to be there before was not run again. */
    assert_true(h->pc.results < 125 + before);
    struct json *doc;
    const struct json *row = job_row(h, id, &doc);
    assert_true(json_f64(json_find(row, "accuracy"), 0) == 0.999);
    json_free(doc);
}

static void restart_and_agent_lost(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit_forced(h, "pc", "phone");
    wait_results(h, &h->pc, 60, 60000);
    close_sched(h);
    fake_kill(&h->phone);
    run_ms(h, 1000);
    open_sched(h);
    wait_over(h, id, 120000);
    expect_done(h, id, 1000);
    expect_output(h, id, 1000);
}

/* Restarted in every stage of a job's life. */
static void restart_at_any_time(void **state)
{
    struct here *h = *state;
    begin(h);
    for (int64_t at_ms = 0; at_ms < 60; at_ms += 7) {
        int64_t id = submit(h, BATCH "}");
        run_ms(h, at_ms);
        close_sched(h);
        run_ms(h, 500);
        open_sched(h);
        wait_over(h, id, 120000);
        expect_done(h, id, 1000);
        expect_output(h, id, 1000);
    }
}

/* Results that take longer than a job may be silent, as planned: it is left alone. */
static void slower_than_the_deadline(void **state)
{
    struct here *h = *state;
    begin(h);
    h->pc.node_ms = h->phone.node_ms = 20000; /* minutes a sample */
    h->pc.samples = 6;
    int64_t id = submit(h, BATCH "}");
    wait_over(h, id, 36000000);
    struct json *doc;
    const struct json *row = job_row(h, id, &doc);
    if (strcmp(json_str(json_find(row, "state"), ""), "done") != 0 || json_i64(json_find(row, "replans"), -1) != 0)
        fail_msg("%s", json_str(json_find(row, "error"), ""));
    json_free(doc);
}

static void stuck_loading(void **state)
{
    struct here *h = *state;
    begin(h);
    h->phone.stall_load = true;
    int64_t id = submit_forced(h, "pc", "phone");
    wait_over(h, id, 3600000);
    struct json *doc;
    const struct json *row = job_row(h, id, &doc);
    if (strcmp(json_str(json_find(row, "state"), ""), "done") != 0)
        assert_non_null(strstr(json_str(json_find(row, "error"), ""), "loading"));
    json_free(doc);
    assert_int_equal(sched_jobs_open(h->s), 0);
}

static void load_fails(void **state)
{
    struct here *h = *state;
    begin(h);
    h->phone.fail_load = "12 MB asked, 3 MB free";
    int64_t id = submit_forced(h, "pc", "phone");
    wait_over(h, id, 600000);
    struct json *doc;
    const struct json *row = job_row(h, id, &doc);
    if (strcmp(json_str(json_find(row, "state"), ""), "done") != 0)
        assert_non_null(strstr(json_str(json_find(row, "error"), ""), "12 MB"));
    json_free(doc);
    assert_true(h->phone.loads <= 20);
}

static void run_fails(void **state)
{
    struct here *h = *state;
    begin(h);
    h->pc.fail_runs = 2;
    int64_t id = submit(h, BATCH "}");
    wait_over(h, id, 120000);
    expect_done(h, id, 1000);
    h->pc.fail_runs = 1000;
    id = submit(h, BATCH "}");
    wait_over(h, id, 600000);
    expect_state(h, id, "failed");
    struct json *doc;
    const struct json *row = job_row(h, id, &doc);
    assert_non_null(strstr(json_str(json_find(row, "error"), ""), "the data set is broken"));
    json_free(doc);
}

static void canceled(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit_forced(h, "pc", "phone");
    wait_results(h, &h->pc, 40, 60000);
    struct yk_diag why = {0};
    assert_int_equal(sched_cancel(h->s, id, &why), YK_OK);
    run_ms(h, 100);
    expect_state(h, id, "canceled");
    int results = h->pc.results;
    assert_false(h->pc.running);
    run_ms(h, 5000);
    assert_int_equal(h->pc.results, results);
    for (int i = 0; i < FAKE_LOADS; i++)
        assert_int_equal(h->pc.load[i].generation + h->phone.load[i].generation, 0);
    assert_int_equal(sched_cancel(h->s, id, &why), YK_STATE);
    assert_int_equal(sched_cancel(h->s, 999, &why), YK_NOTFOUND);
    id = submit(h, BATCH "}");
    wait_over(h, id, 120000);
    expect_done(h, id, 1000);
}

/* Canceled in every stage of its life. */
static void canceled_at_any_time(void **state)
{
    struct here *h = *state;
    begin(h);
    for (int64_t at_ms = 0; at_ms < 60; at_ms += 3) {
        struct yk_diag why = {0};
        int64_t id = submit(h, BATCH "}");
        run_ms(h, at_ms);
        assert_int_equal(sched_cancel(h->s, id, &why), YK_OK);
        run_ms(h, 200);
        expect_state(h, id, "canceled");
    }
    assert_int_equal(sched_jobs_open(h->s), 0);
    for (int i = 0; i < FAKE_LOADS; i++)
        assert_int_equal(h->pc.load[i].generation + h->phone.load[i].generation, 0);
}

static char *npy_of(int64_t n, size_t *len)
{
    struct yk_buf b = {0};
    struct shape s = {DT_F32, 4, {n, 1, 28, 28}};
    assert_int_equal(npy_header(&s, &b), YK_OK);
    uint8_t *room = yk_buf_room(&b, (size_t)n * 784 * 4);
    memset(room, 0, (size_t)n * 784 * 4);
    *len = b.len;
    return (char *)b.data;
}

/* Uploaded data has no source: any agent can be it, also after a loss. */
static void uploaded(void **state)
{
    struct here *h = *state;
    begin(h);
    size_t len;
    char hash[65], request[300];
    char *data = npy_of(50, &len);
    upload(h, data, len, hash);
    free(data);
    snprintf(request, sizeof(request),
        "{\"kind\":\"infer\",\"model\":\"mnist\",\"data\":{\"blob\":\"%s\"},\"outputs\":true}", hash);
    int64_t id = submit(h, request);
    wait_over(h, id, 120000);
    expect_done(h, id, 50);
    expect_output(h, id, 50);
    snprintf(request, sizeof(request),
        "{\"kind\":\"batch\",\"model\":\"mnist\",\"data\":{\"blob\":\"%s\"},\"outputs\":true,\"microbatch\":1}", hash);
    h->pc.node_ms = h->phone.node_ms = 1;
    id = submit(h, request);
    for (int i = 0; i < 60000 && !h->pc.running && !h->phone.running; i++)
        run_ms(h, 1);
    run_ms(h, 50);
    struct fake *source = h->pc.running ? &h->pc : &h->phone;
    assert_true(source->running);
    fake_kill(source);
    wait_over(h, id, 120000);
    expect_done(h, id, 50);
    expect_output(h, id, 50);
}

static void nobody_there(void **state)
{
    struct here *h = *state;
    add_model(h);
    int64_t id = submit(h, BATCH "}");
    wait_over(h, id, 120000);
    expect_state(h, id, "failed");
    struct json *doc;
    const struct json *row = job_row(h, id, &doc);
    assert_true(strlen(json_str(json_find(row, "error"), "")) > 10);
    json_free(doc);
    /* One that was queued before the agents came. */
    id = submit(h, BATCH "}");
    run_ms(h, 5000);
    fake_start(&h->pc);
    wait_over(h, id, 120000);
    expect_done(h, id, 1000);
}

static void many_at_once(void **state)
{
    struct here *h = *state;
    int64_t ids[6];
    begin(h);
    for (int i = 0; i < 6; i++)
        ids[i] = submit(h, BATCH ",\"deadline_ms\":0}");
    for (int i = 0; i < 6; i++)
        wait_over(h, ids[i], 600000);
    for (int i = 0; i < 6; i++)
        assert_true(job_over(h, ids[i]));
    assert_int_equal(sched_jobs_open(h->s), 0);
}

/* A deadline is of the whole job: refused where it is known to be missed, and over when it has passed. */
static void deadline_of_the_job(void **state)
{
    struct here *h = *state;
    struct json *doc;
    begin(h);
    h->pc.node_ms = h->phone.node_ms = 0.2;
    int64_t id = submit(h, BATCH ",\"deadline_ms\":600}"); /* one batch fits, 1000 samples do not */
    wait_over(h, id, 120000);
    expect_state(h, id, "failed");
    const char *error = json_str(json_find(job_row(h, id, &doc), "error"), "");
    if (!strstr(error, "deadline of 600 ms passed after ") || !strstr(error, " of 1000 samples"))
        fail_msg("%s", error);
    json_free(doc);
    size_t len;
    char hash[65], request[300];
    char *data = npy_of(500, &len);
    upload(h, data, len, hash);
    free(data);
    snprintf(request, sizeof request,
        "{\"kind\":\"batch\",\"model\":\"mnist\",\"data\":{\"blob\":\"%s\"},\"batch\":50,\"deadline_ms\":300}", hash);
    id = submit(h, request);
    wait_over(h, id, 120000);
    expect_state(h, id, "failed");
    error = json_str(json_find(job_row(h, id, &doc), "error"), "");
    if (!strstr(error, "300 ms") || !strstr(error, "for 500 samples"))
        fail_msg("%s", error);
    json_free(doc);
    id = submit(h, BATCH ",\"deadline_ms\":60000}");
    wait_over(h, id, 120000);
    expect_done(h, id, 1000);
}

/* Bad requests are refused when they come, and name what and the mend. */
#define TRAIN "{\"kind\":\"train\",\"model\":\"mnist\",\"data\":{\"name\":\"d\"},\"source\":\"pc\""

static void bad_requests(void **state)
{
    struct here *h = *state;
    begin(h);
    static const struct {
        const char *request, *says;
    } bad[] = {
        {"", ""},
        {"{", ""},
        {"[]", "object"},
        {"{\"kind\":\"batch\",\"model\":\"none\",\"data\":{\"name\":\"d\"},\"source\":\"pc\"}", "none"},
        {"{\"kind\":\"batch\",\"model\":\"mnist\",\"data\":{\"name\":\"d\"}}", "source"},
        {"{\"kind\":\"batch\",\"model\":\"mnist\",\"source\":\"pc\"}", "data"},
        {"{\"kind\":\"dance\",\"model\":\"mnist\",\"data\":{\"name\":\"d\"},\"source\":\"pc\"}", "dance"},
        {TRAIN ",\"train\":{\"lr\":-1}}", "lr"},
        {TRAIN ",\"train\":{\"epoch\":1}}", "epoch"},
        {TRAIN ",\"deadline_ms\":5}", "deadline_ms"},
        {TRAIN ",\"objective\":\"latency\"}", "throughput"},
        {BATCH ",\"train\":{}}", "kind train"},
        {"{\"kind\":7,\"model\":\"mnist\"}", "kind"},
        {"{\"model\":\"mnist\"}", "kind"},
        {BATCH ",\"colour\":1}", "colour"},
        {BATCH ",\"microbatch\":0}", "microbatch"},
        {BATCH ",\"microbatch\":1e99}", "microbatch"},
        {BATCH ",\"objective\":\"beauty\"}", "beauty"},
        {BATCH ",\"codec\":[\"mp3\"]}", "mp3"},
        {BATCH ",\"plan\":{}}", ""},
        {"{\"kind\":\"infer\",\"model\":\"mnist\",\"data\":{\"blob\":\"../../etc/passwd\"}}", "hex"},
        {"{\"kind\":\"infer\",\"model\":\"mnist\",\"data\":{\"blob\":"
         "\"0000000000000000000000000000000000000000000000000000000000000000\"}}",
            "upload"},
    };
    for (size_t i = 0; i < YK_COUNT(bad); i++) {
        sched_submit(h->s, bad[i].request, strlen(bad[i].request), on_text, h);
        wait_answer(h, 1000);
        if (!h->err || !strstr(h->text, bad[i].says))
            fail_msg("%s: %s %s", bad[i].request, yk_err_name(h->err), h->text);
    }
    assert_int_equal(sched_jobs_open(h->s), 0);
    int64_t id = submit(h, "{\"kind\":\"batch\",\"model\":\"mnist\",\"data\":{\"name\":\"d\"},\"source\":\"tablet\"}");
    wait_over(h, id, 60000);
    expect_state(h, id, "failed");
    struct json *doc;
    assert_non_null(strstr(json_str(json_find(job_row(h, id, &doc), "error"), ""), "tablet"));
    json_free(doc);
}

/* The same plan by different ways is stored as the same bytes. */
static void forced_plan_is_stored_as_given(void **state)
{
    struct here *h = *state;
    begin(h);
    char *plan = two_stages(h, "pc", "phone");
    char *spaced = yk_xasprintf(BATCH ",  \"plan\" : \n %s }", plan),
         *plain = yk_xasprintf(BATCH ",\"plan\":%s}", plan);
    int64_t a = submit(h, spaced);
    wait_over(h, a, 120000);
    int64_t b = submit(h, plain);
    wait_over(h, b, 120000);
    expect_done(h, a, 1000);
    expect_done(h, b, 1000);
    struct plan *p[2];
    for (int i = 0; i < 2; i++) {
        store_plan_of(sched_store(h->s), i ? b : a, on_json, h);
        wait_answer(h, 1000);
        struct json *doc = answer_json(h);
        assert_int_equal(plan_from_json(doc, &p[i], NULL), YK_OK);
        json_free(doc);
    }
    struct yk_buf text[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        struct json_out o;
        json_out_init(&o, &text[i], 0);
        plan_to_json(p[i], &o);
        plan_free(p[i]);
    }
    assert_int_equal(text[0].len, text[1].len);
    assert_memory_equal(text[0].data, text[1].data, text[0].len);
    yk_buf_free(&text[0]);
    yk_buf_free(&text[1]);
    free(plan);
    free(spaced);
    free(plain);
}

/* A watcher's long poll: it waits, an event wakes it, and other jobs' events do not. */
static void events(void **state)
{
    struct here *h = *state;
    begin(h);
    int64_t id = submit_forced(h, "pc", "phone");
    wait_results(h, &h->pc, 10, 60000);
    sched_events(h->s, id, 0, 0, on_text, h);
    wait_answer(h, 1000);
    struct json *doc = answer_json(h);
    int64_t cursor = json_i64(json_find(doc, "cursor"), -1);
    assert_true(json_len(json_find(doc, "events")) >= 3);
    assert_true(cursor > 0);
    json_free(doc);
    int64_t other =
        submit(h, "{\"kind\":\"batch\",\"model\":\"mnist\",\"data\":{\"name\":\"d\"},\"source\":\"tablet\"}");
    run_ms(h, 50);
    expect_state(h, other, "failed");
    h->answered = false;
    sched_events(h->s, id, cursor, 20000, on_text, h);
    run_ms(h, 20);
    assert_false(h->answered);
    wait_answer(h, 25000);
    doc = answer_json(h);
    assert_true(json_len(json_find(doc, "events")) >= 1);
    assert_true(json_i64(json_find(doc, "cursor"), -1) > cursor);
    json_free(doc);
    wait_over(h, id, 60000);
    /* Of a job that has ended nothing more comes: answered at once. */
    sched_events(h->s, id, INT32_MAX, 20000, on_text, h);
    wait_answer(h, 100);
}

/* Time passes and agents come and go while a job waits in each of its states; whatever happens, it ends. */
static void storm(void **state)
{
    struct here *h = *state;
    struct yk_rng r;
    begin(h);
    fake_start(&h->cloud);
    for (uint64_t seed = 1; seed <= 25; seed++) {
        yk_rng_seed(&r, seed);
        int64_t id = seed % 2 ? submit(h, BATCH "}") : submit_forced(h, "pc", "phone");
        for (int step = 0; step < 12 && !job_over(h, id); step++) {
            struct fake *f = h->all[yk_rng_below(&r, 3)];
            switch (yk_rng_below(&r, 4)) {
            case 0:
                fake_kill(f);
                break;
            case 1:
                if (!f->dead)
                    fake_freeze(f);
                break;
            case 2:
                f->stall_load = !f->stall_load;
                break;
            default:
                break;
            }
            run_ms(h, (int64_t)yk_rng_below(&r, 3000));
            for (int i = 0; i < 3; i++) {
                if (!h->all[i]->dead && !h->all[i]->frozen)
                    continue;
                if (h->all[i]->frozen)
                    fake_kill(h->all[i]);
                fake_start(h->all[i]);
            }
        }
        for (int i = 0; i < 3; i++)
            h->all[i]->stall_load = false;
        wait_over(h, id, 1200000);
        if (job_is(h, id, "done"))
            expect_output(h, id, 1000);
        else
            printf("seed %llu failed\n", (unsigned long long)seed);
        run_ms(h, 8000);
    }
    assert_int_equal(sched_jobs_open(h->s), 0);
}

int main(int argc, char **argv)
{
    log_set_level(getenv("YOKE_TEST_LOG") ? LOG_INFO : LOG_ERROR);
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(batch_ends_well),
        T(spans_are_checked),
        T(results_before_run_started),
        T(samples_that_do_not_divide),
        T(profile_is_kept),
        T(forced_two_stages),
        T(agent_lost),
        T(agent_silent),
        T(source_lost_and_back),
        T(source_never_back),
        T(both_lost),
        T(again_and_again),
        T(restart),
        T(restart_and_agent_lost),
        T(restart_at_any_time),
        T(slower_than_the_deadline),
        T(stuck_loading),
        T(load_fails),
        T(run_fails),
        T(canceled),
        T(canceled_at_any_time),
        T(uploaded),
        T(nobody_there),
        T(many_at_once),
        T(deadline_of_the_job),
        T(bad_requests),
        T(forced_plan_is_stored_as_given),
        T(events),
        T(storm),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
