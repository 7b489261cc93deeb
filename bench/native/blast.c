// blast: a closed-loop HTTP/1.1 load generator that checks every answer.
//
// One thread, epoll, keep-alive; each connection has exactly one request in flight. Request
// templates come from a file of raw HTTP requests, each with its length (32 bit, host order)
// before it; connection i uses template i modulo their number. Every "@@ID@@@@@@" in a template
// becomes a fresh ten-digit id. An answer is good only if it is a 200 whose body holds the
// expected text followed by that id (with -X the expected text alone), so an answer that is
// wrong, crossed or failed counts as bad. The result is one line of JSON.
//
// usage: blast -p port -c connections -n requests -t seconds -r file -x expected [-X] [-d]
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MARK "@@ID@@@@@@"
#define ID_LEN 10
#define MAX_MARKS 8
#define MAX_TEMPLATES 4096
#define MAX_EXPECTED 256

typedef struct {
    char *bytes;
    size_t len, marks[MAX_MARKS];
    int mark_count;
} request_template;

typedef struct {
    int fd, busy;
    request_template *template;
    char *out, *in;
    size_t out_len, out_sent, in_len, in_cap;
    char id[ID_LEN + 1];
    uint64_t sent_at;
    // the answer, as far as it is read
    ssize_t head_len, content_len;
    size_t chunk_at;
    int status, chunked, closes, until_eof;
} connection;

static request_template templates[MAX_TEMPLATES];
static int template_count, epoll_fd;
static int port, connection_count = 1, id_optional, show_bad;
static long wanted = 1000, issued, good, bad, bad_status, mismatched, reconnects;
static double max_seconds = 30;
static const char *expected = "";
static size_t expected_len;
static uint32_t *tenths_of_us; // one latency for each answer
static uint64_t next_id = 1000000001ULL, bytes_in;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + t.tv_nsec;
}

// ---------------------------------------------------------------- sending

static void dial(connection *c) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (c->fd >= 0) close(c->fd);
    for (int tries = 0;; tries++) {
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(c->fd, (void *)&address, sizeof address) == 0) break;
        if (tries > 200) {
            perror("blast cannot connect");
            exit(3);
        }
        close(c->fd);
        usleep(10000);
    }
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, c->fd, &e);
    c->in_len = 0;
    c->head_len = -1;
}

static void redial(connection *c) {
    reconnects++;
    dial(c);
}

static void watch(connection *c, unsigned events) {
    struct epoll_event e = {.events = events, .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
}

static void flush(connection *c) {
    while (c->out_sent < c->out_len) {
        ssize_t n = write(c->fd, c->out + c->out_sent, c->out_len - c->out_sent);
        if (n < 0 && errno == EAGAIN) watch(c, EPOLLIN | EPOLLOUT);
        if (n < 0) return;
        c->out_sent += n;
    }
}

static void fire(connection *c) {
    if (issued >= wanted) {
        c->busy = 0;
        return;
    }
    issued++;
    request_template *t = c->template;
    snprintf(c->id, sizeof c->id, "%010llu", (unsigned long long)next_id++);
    memcpy(c->out, t->bytes, t->len);
    for (int i = 0; i < t->mark_count; i++) memcpy(c->out + t->marks[i], c->id, ID_LEN);
    c->out_len = t->len;
    c->out_sent = c->in_len = c->chunk_at = 0;
    c->head_len = c->content_len = -1;
    c->chunked = c->closes = c->until_eof = 0;
    c->busy = 1;
    c->sent_at = now_ns();
    flush(c);
}

// ---------------------------------------------------------------- receiving

static int read_head(connection *c) {
    c->in[c->in_len] = 0;
    char *end = memmem(c->in, c->in_len, "\r\n\r\n", 4);
    if (!end) return 0;
    c->head_len = end + 4 - c->in;
    c->status = atoi(c->in + 9);
    *end = 0;
    for (char *line = c->in; (line = strstr(line, "\r\n"));) {
        line += 2;
        if (!strncasecmp(line, "content-length:", 15)) c->content_len = atol(line + 15);
        if (!strncasecmp(line, "transfer-encoding: chunked", 26)) c->chunked = 1;
        if (!strncasecmp(line, "connection: close", 17)) c->closes = 1;
    }
    *end = '\r';
    if (c->status == 204 || c->status == 304) c->content_len = 0;
    c->until_eof = c->content_len < 0 && !c->chunked;
    c->chunk_at = c->head_len;
    return 1;
}

static int is_complete(connection *c) {
    if (c->head_len < 0 && !read_head(c)) return 0;
    if (c->until_eof) return 0;
    if (!c->chunked) return c->in_len >= (size_t)(c->head_len + c->content_len);
    for (;;) {
        char *line_end = memmem(c->in + c->chunk_at, c->in_len - c->chunk_at, "\r\n", 2);
        if (!line_end) return 0;
        long n = strtol(c->in + c->chunk_at, 0, 16);
        size_t next = (line_end - c->in) + 2 + n + 2;
        if (c->in_len < next) return 0;
        if (n == 0) return 1;
        c->chunk_at = next;
    }
}

static int is_good(connection *c) {
    if (c->status != 200) {
        bad_status++;
        return 0;
    }
    char key[MAX_EXPECTED + ID_LEN];
    size_t len = expected_len;
    memcpy(key, expected, expected_len);
    if (!id_optional) {
        memcpy(key + len, c->id, ID_LEN);
        len += ID_LEN;
    }
    if (!len || memmem(c->in + c->head_len, c->in_len - c->head_len, key, len)) return 1;
    mismatched++;
    return 0;
}

static void finish(connection *c, int ok) {
    uint64_t tenths = (now_ns() - c->sent_at) / 100;
    tenths_of_us[good + bad] = tenths > UINT32_MAX ? UINT32_MAX : tenths;
    bytes_in += c->in_len;
    if (ok)
        good++;
    else
        bad++;
    if (!ok && show_bad > 0) {
        show_bad--;
        fprintf(stderr, "%.*s\n", (int)(c->in_len > 1500 ? 1500 : c->in_len), c->in);
    }
}

// Reads what is there; 1 when the peer has closed.
static int read_some(connection *c) {
    for (;;) {
        if (c->in_cap - c->in_len < 32768) {
            c->in_cap *= 2;
            c->in = realloc(c->in, c->in_cap + 1);
        }
        size_t room = c->in_cap - c->in_len;
        ssize_t n = read(c->fd, c->in + c->in_len, room);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return 1;
        if (n < 0) return 0;
        c->in_len += n;
        if ((size_t)n < room) return 0;
    }
}

static void on_closed(connection *c) {
    if (!c->busy) {
        epoll_ctl(epoll_fd, EPOLL_CTL_DEL, c->fd, 0);
        return;
    }
    if (c->in_len == 0 && c->out_sent > 0) {
        issued--; // an idle connection was closed under the request: not an answer, ask again
    } else {
        finish(c, c->until_eof && c->head_len > 0 && is_good(c));
    }
    redial(c);
    fire(c);
}

static void on_readable(connection *c) {
    int closed = read_some(c);
    if (c->busy && c->in_len && is_complete(c)) {
        finish(c, is_good(c));
        if (c->closes || closed) redial(c);
        fire(c);
    } else if (closed) {
        on_closed(c);
    }
}

// ---------------------------------------------------------------- the run

static size_t load_templates(const char *path) {
    FILE *file = fopen(path, "rb");
    uint32_t len;
    size_t longest = 0;
    if (!file) {
        perror(path);
        exit(2);
    }
    while (template_count < MAX_TEMPLATES && fread(&len, sizeof len, 1, file) == 1) {
        request_template *t = &templates[template_count++];
        t->bytes = malloc(len);
        t->len = len;
        if (fread(t->bytes, 1, len, file) != len) exit(2);
        for (size_t i = 0; i + ID_LEN <= len && t->mark_count < MAX_MARKS; i++)
            if (!memcmp(t->bytes + i, MARK, ID_LEN)) t->marks[t->mark_count++] = i;
        if (len > longest) longest = len;
    }
    fclose(file);
    return longest;
}

static double run(size_t longest) {
    connection *all = calloc(connection_count, sizeof *all);
    struct epoll_event ready[256];
    epoll_fd = epoll_create1(0);
    for (int i = 0; i < connection_count; i++) {
        all[i].fd = -1;
        all[i].template = &templates[i % template_count];
        all[i].out = malloc(longest);
        all[i].in_cap = 65536;
        all[i].in = malloc(all[i].in_cap + 1);
        dial(&all[i]);
    }
    uint64_t start = now_ns(), limit = (uint64_t)(max_seconds * 1e9);
    for (int i = 0; i < connection_count; i++) fire(&all[i]);
    while (good + bad < wanted && now_ns() - start < limit) {
        int n = epoll_wait(epoll_fd, ready, 256, 200);
        for (int i = 0; i < n; i++) {
            connection *c = ready[i].data.ptr;
            if (ready[i].events & EPOLLOUT) {
                flush(c);
                if (c->out_sent >= c->out_len) watch(c, EPOLLIN);
            }
            if (ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) on_readable(c);
        }
    }
    return (now_ns() - start) / 1e9;
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static double quantile_us(long count, double q) {
    return count ? tenths_of_us[(long)((count - 1) * q)] / 10.0 : 0;
}

static void report(double seconds) {
    long n = good + bad;
    qsort(tenths_of_us, n, sizeof *tenths_of_us, by_size);
    printf("{\"connections\":%d,\"n\":%ld,\"bad\":%ld,\"bad_status\":%ld,\"mismatched\":%ld,"
           "\"unanswered\":%ld,\"reconnects\":%ld,\"seconds\":%.6f,\"per_second\":%.2f,"
           "\"bytes\":%llu,",
           connection_count, n, bad, bad_status, mismatched, issued - n, reconnects, seconds,
           seconds > 0 ? n / seconds : 0, (unsigned long long)bytes_in);
    printf("\"p50_us\":%.1f,\"p95_us\":%.1f,\"p99_us\":%.1f}\n", quantile_us(n, .5),
           quantile_us(n, .95), quantile_us(n, .99));
}

int main(int argc, char **argv) {
    const char *file = 0;
    for (int option; (option = getopt(argc, argv, "p:c:n:t:r:x:Xd")) != -1;) {
        switch (option) {
        case 'p': port = atoi(optarg); break;
        case 'c': connection_count = atoi(optarg); break;
        case 'n': wanted = atol(optarg); break;
        case 't': max_seconds = atof(optarg); break;
        case 'r': file = optarg; break;
        case 'x': expected = optarg; break;
        case 'X': id_optional = 1; break;
        case 'd': show_bad = 1; break;
        default: return 2;
        }
    }
    expected_len = strlen(expected);
    size_t longest = file ? load_templates(file) : 0;
    if (!template_count || expected_len > MAX_EXPECTED || connection_count < 1) return 2;
    tenths_of_us = malloc(sizeof *tenths_of_us * (wanted + connection_count + 8));
    report(run(longest));
    return 0;
}
