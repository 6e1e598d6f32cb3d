/* A source that decodes images: the same answers, exactly one microbatch ahead, and nothing left when it is stopped. */
#include "tests/sim/agent_bed.h"

#include <png.h>

static void picture_path(const struct bed *b, int i, char *path, size_t size)
{
    snprintf(path, size, "%s/pics/%03d.png", b->root, i);
}

/* The bed's samples as bytes, and as a folder of PNG. */
static void put_pictures(struct bed *b)
{
    struct yk_rng rng;
    char path[128];
    yk_rng_seed(&rng, 5);
    snprintf(path, sizeof path, "%s/pics", b->root);
    assert_int_equal(mkdir(path, 0700), 0);
    for (int i = 0; i < BED_SAMPLES; i++) {
        uint8_t pixels[BED_PIXELS];
        for (int k = 0; k < BED_PIXELS; k++) {
            pixels[k] = (uint8_t)yk_rng_next(&rng);
            b->x[i * BED_PIXELS + k] = (float)pixels[k] / 255.0f;
        }
        png_image m = {.version = PNG_IMAGE_VERSION, .width = 28, .height = 28, .format = PNG_FORMAT_GRAY};
        picture_path(b, i, path, sizeof path);
        assert_int_equal(png_image_write_to_file(&m, path, 0, pixels, 0, NULL), 1);
    }
}

static void finish(struct bed *b)
{
    char path[128];
    for (int i = 0; i < BED_SAMPLES; i++) {
        picture_path(b, i, path, sizeof path);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/pics", b->root);
    rmdir(path);
    bed_close(b);
}

static const struct wire_run pictures = {.data = "pics", .want_outputs = true};

static void images_give_the_same(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    put_pictures(b);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    for (int turn = 0; turn < 6; turn++) { /* one stage or two, any depth, little credit or more */
        struct bed_plan p = bed_two_stages;
        p.generation = 1 + turn;
        p.n_stages = 1 + turn % 2;
        p.depth = 1 + turn / 2;
        p.credits = 1 + turn % 3;
        bed_load_ok(b, &p);
        for (int again = 0; again < 2; again++) {
            b->n_done = 0;
            bed_forget_results(b);
            bed_run(b, &p, &pictures);
            BED_UNTIL(b, 10000, b->n_done == 1 && b->n_results == 8);
            net_mem_run_for(b->net, 50000);
            assert_string_equal(b->done_error, "");
            bed_check_outputs(b, 5, BED_SAMPLES);
        }
        bed_unload(b, &p);
    }
    assert_int_equal(b->n_failed, 0);
    finish(b);
}

/* A slow device with one microbatch in flight: while it computes the first, the second was read and the third was not.
 */
static void reads_one_ahead(void **state)
{
    (void)state;
    struct bed *b = bed_open(0);
    put_pictures(b);
    struct agent_emulate e = {.gflops = 0.001, .battery_frac = NAN, .memory_bytes = 50000000};
    bed_start(b, 0, &e, 0);
    BED_UNTIL(b, 2000, bed_joined(b, 1));
    struct bed_plan p = bed_two_stages;
    p.n_stages = 1;
    p.depth = 1;
    p.timeout_ms = 3600000;
    bed_load_ok(b, &p);
    bed_run(b, &p, &pictures);
    BED_UNTIL(b, 60000, b->n_started == 1);
    net_mem_run_for(b->net, 10000);
    assert_int_equal(b->n_results, 0);
    char path[128];
    for (int i = 5; i < 15; i++) { /* of the second and the third */
        picture_path(b, i, path, sizeof path);
        assert_int_equal(unlink(path), 0);
    }
    BED_UNTIL(b, 600000, b->n_done == 1);
    assert_string_equal(b->done_error, "NOTFOUND");
    assert_non_null(strstr(b->done_text, "pics: 010.png: No such file"));
    /* The error of the third ends the run, while the second may be under way; the first was answered. */
    assert_true(b->n_results >= 1);
    assert_int_equal(b->results[0].first, 0);
    finish(b);
}

static void stopped_in_the_middle(void **state)
{
    (void)state;
    struct bed *b = bed_open(2);
    put_pictures(b);
    net_mem_set_link(b->net, "agent1", 1000, 1e6);
    BED_UNTIL(b, 2000, bed_joined(b, 2));
    struct bed_plan p = bed_two_stages;
    p.depth = 2;
    bed_load_ok(b, &p);
    bed_run(b, &p, &pictures);
    BED_UNTIL(b, 5000, b->n_results >= 1);
    struct wire_cancel w = {.term = 3, .generation = 1, .job = "job"};
    chan_send(b->agents[0].control, WIRE_TYPE_cancel, &w);
    BED_UNTIL(b, 100, b->n_done == 1);
    assert_string_equal(b->done_error, "CANCELED");
    bed_forget_results(b);
    bed_run(b, &p, &pictures); /* while the last one drains */
    BED_UNTIL(b, 10000, b->n_done == 2 && b->n_results == 8);
    assert_string_equal(b->done_error, "");
    bed_check_outputs(b, 5, BED_SAMPLES);
    bed_forget_results(b);
    bed_run(b, &p, &pictures);
    BED_UNTIL(b, 5000, b->n_results >= 1);
    bed_unload(b, &p); /* in the middle of a run */
    bed_load_ok(b, &p);
    bed_forget_results(b);
    bed_run(b, &p, &pictures);
    BED_UNTIL(b, 5000, b->n_results >= 1);
    bed_stop(b, 1); /* the peer goes: what was read goes back */
    net_mem_run_for(b->net, 3000000);
    finish(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_give_the_same),
        cmocka_unit_test(reads_one_ahead),
        cmocka_unit_test(stopped_in_the_middle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
