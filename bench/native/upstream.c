// upstream: the far end of every row, an MCP server and A2A agent made as cheap as it can be.
//
// One thread; HTTP/1.1 over epoll on 127.0.0.1, or newline-delimited stdio. It speaks MCP of
// 2025-11-25 (handshake, no sessions) and 2026-07-28 (per-request envelope). The first path
// segment is a prefix for tool names, so one process plays many servers: /u3/mcp has the tools
// echo, u3_tool_00001 and so on. Every tool answers "E:" followed by its argument "text".
//
// It is also an A2A 1.0 agent at /a2a with the one skill "echo", whose card is where cards are: a
// message is answered by a message, and it has no tasks.
//
// It trusts its peers to be well-formed.
//
// usage: upstream --port P [--tools N]
//        upstream --stdio [--tools N]
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "json.h"

static int tool_count = 1;
static int http_port;
static int epoll_fd;

// ---------------------------------------------------------------- the tool lists

#define MAX_PREFIXES 64
#define PREFIX_SIZE 32

typedef struct {
    char prefix[PREFIX_SIZE];
    buffer json;
} tool_list;

static tool_list lists[MAX_PREFIXES];
static int list_count;

static void add_tool(buffer *json, const char *prefix, int number) {
    char name[PREFIX_SIZE + 16] = "echo", text[512];
    if (number > 0) snprintf(name, sizeof name, "%s_tool_%05d", prefix, number);
    snprintf(text, sizeof text,
             "%s{\"name\":\"%s\",\"description\":\"Echo the text back to the caller; tool number "
             "%d of server %s, described at the length tool descriptions usually have.\","
             "\"inputSchema\":",
             number ? "," : "", name, number, prefix);
    add_text(json, text);
    add_text(json,
             "{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\",\"description\":"
             "\"Text to echo\"},\"count\":{\"type\":\"integer\",\"description\":\"How many times\","
             "\"minimum\":1,\"maximum\":100}},\"required\":[\"text\"]}}");
}

// Made on first use and kept: a list costs a copy.
static buffer *tools_of(const char *prefix) {
    for (int i = 0; i < list_count; i++)
        if (!strcmp(lists[i].prefix, prefix)) return &lists[i].json;
    if (list_count == MAX_PREFIXES) {
        fprintf(stderr, "upstream plays at most %d servers\n", MAX_PREFIXES);
        exit(1);
    }
    tool_list *made = &lists[list_count++];
    snprintf(made->prefix, PREFIX_SIZE, "%s", prefix);
    add_text(&made->json, "\"tools\":[");
    for (int i = 0; i < tool_count; i++) add_tool(&made->json, prefix, i);
    add_text(&made->json, "]");
    return &made->json;
}

// ---------------------------------------------------------------- MCP

static buffer reply; // the body of the answer being made

#define COMPLETE "\"resultType\":\"complete\",\"ttlMs\":0,\"cacheScope\":\"public\""
#define SERVER "{\"name\":\"bench-upstream\",\"version\":\"1.0\"}"
#define FEATURES "\"capabilities\":{\"tools\":{\"listChanged\":false}},\"serverInfo\":" SERVER

static void answer_call(slice params, int modern) {
    slice text = member(member(params, "arguments"), "text");
    add_text(&reply, "{\"content\":[{\"type\":\"text\",\"text\":\"E:");
    if (text.len >= 2 && text.at[0] == '"') add(&reply, text.at + 1, text.len - 2);
    add_text(&reply, "\"}],\"isError\":false");
    add_text(&reply, modern ? ",\"resultType\":\"complete\"}" : "}");
}

static void answer_tool_list(const char *prefix, int modern) {
    buffer *tools = tools_of(prefix);
    add_text(&reply, modern ? "{" COMPLETE "," : "{");
    add(&reply, tools->bytes, tools->len);
    add_text(&reply, "}");
}

static void answer_empty_list(const char *name, int modern) {
    add_text(&reply, "{\"");
    add_text(&reply, name);
    add_text(&reply, modern ? "\":[]," COMPLETE "}" : "\":[]}");
}

static void answer_initialize(slice params) {
    slice asked = member(params, "protocolVersion");
    add_text(&reply, "{\"protocolVersion\":");
    if (asked.len && !contains(asked, "2026"))
        add(&reply, asked.at, asked.len);
    else
        add_text(&reply, "\"2025-11-25\"");
    add_text(&reply, "," FEATURES "}");
}

static void answer_discover(void) {
    add_text(&reply,
             "{" COMPLETE ",\"supportedVersions\":[\"2026-07-28\",\"2025-11-25\"]," FEATURES
             ",\"_meta\":{\"io.modelcontextprotocol/serverInfo\":" SERVER "}}");
}

// ---------------------------------------------------------------- A2A

#define CARD_PATH "/.well-known/agent-card.json"

static void answer_card(void) {
    char text[1024];
    snprintf(text, sizeof text,
             "{\"name\":\"far\",\"description\":\"Says it again\",\"version\":\"1\","
             "\"supportedInterfaces\":[{\"url\":\"http://127.0.0.1:%d/a2a\","
             "\"protocolBinding\":\"JSONRPC\",\"protocolVersion\":\"1.0\"}],"
             "\"capabilities\":{\"streaming\":false,\"pushNotifications\":false},"
             "\"defaultInputModes\":[\"text/plain\"],\"defaultOutputModes\":[\"text/plain\"],"
             "\"skills\":[{\"id\":\"echo\",\"name\":\"Echo\",\"description\":"
             "\"Says the text again\",\"tags\":[\"echo\"]}]}",
             http_port);
    reply.len = 0;
    add_text(&reply, text);
}

// What the first part of the message says: its text, or "text" in its data.
static void answer_message(slice params) {
    slice part = first(member(member(params, "message"), "parts"));
    slice text = member(part, "text");
    if (!text.len) text = member(member(part, "data"), "text");
    add_text(&reply, "{\"message\":{\"messageId\":\"m-1\",\"role\":\"ROLE_AGENT\",\"parts\":"
                     "[{\"text\":\"E:");
    if (text.len >= 2 && text.at[0] == '"') add(&reply, text.at + 1, text.len - 2);
    add_text(&reply, "\"}]}}");
}

// ---------------------------------------------------------------- both

static void answer_error(size_t before, const char *error) {
    reply.len = before;
    add_text(&reply, ",\"error\":");
    add_text(&reply, error);
    add_text(&reply, "}");
}

// Fills `reply`; gives the HTTP status. A notification gets 202 and no body.
static int answer(slice message, const char *prefix) {
    slice method = member(message, "method"), id = member(message, "id");
    slice params = member(message, "params");
    reply.len = 0;
    if (!method.len || !id.len) return 202;
    int modern = contains(params, "io.modelcontextprotocol/protocolVersion");

    add_text(&reply, "{\"jsonrpc\":\"2.0\",\"id\":");
    add(&reply, id.at, id.len);
    size_t before = reply.len;
    add_text(&reply, ",\"result\":");
    if (is_string(method, "tools/call"))
        answer_call(params, modern);
    else if (is_string(method, "tools/list"))
        answer_tool_list(prefix, modern);
    else if (is_string(method, "initialize"))
        answer_initialize(params);
    else if (is_string(method, "server/discover"))
        answer_discover();
    else if (is_string(method, "ping"))
        add_text(&reply, "{}");
    else if (is_string(method, "prompts/list"))
        answer_empty_list("prompts", modern);
    else if (is_string(method, "resources/list"))
        answer_empty_list("resources", modern);
    else if (is_string(method, "resources/templates/list"))
        answer_empty_list("resourceTemplates", modern);
    else if (is_string(method, "SendMessage"))
        answer_message(params);
    else if (is_string(method, "GetTask") || is_string(method, "CancelTask")) {
        answer_error(before, "{\"code\":-32001,\"message\":\"Task not found\"}");
        return 200;
    } else {
        answer_error(before, "{\"code\":-32601,\"message\":\"Method not found\"}");
        return modern ? 404 : 200;
    }
    add_text(&reply, "}");
    return 200;
}

// ---------------------------------------------------------------- HTTP

typedef struct {
    int fd, close_after;
    char *in;
    size_t in_len, in_cap;
    buffer out;
} connection;

typedef struct {
    size_t head_len, content_len;
    int chunked, close_after;
} request_head;

static void watch(connection *c, unsigned events) {
    struct epoll_event e = {.events = events, .data.ptr = c};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, c->fd, &e);
}

static void drop(connection *c) {
    close(c->fd);
    free(c->in);
    free(c->out.bytes);
    free(c);
}

// -1 when the connection has to be dropped.
static int flush(connection *c) {
    while (c->out.sent < c->out.len) {
        ssize_t n = write(c->fd, c->out.bytes + c->out.sent, c->out.len - c->out.sent);
        if (n < 0 && errno == EAGAIN) {
            watch(c, EPOLLIN | EPOLLOUT);
            return 0;
        }
        if (n < 0) return -1;
        c->out.sent += n;
    }
    c->out.len = c->out.sent = 0;
    return c->close_after ? -1 : 0;
}

static int read_head(connection *c, request_head *head) {
    c->in[c->in_len] = 0;
    char *end = memmem(c->in, c->in_len, "\r\n\r\n", 4);
    if (!end) return 0;
    *head = (request_head){.head_len = end + 4 - c->in};
    *end = 0;
    for (char *line = c->in; (line = strstr(line, "\r\n"));) {
        line += 2;
        if (!strncasecmp(line, "content-length:", 15)) head->content_len = atol(line + 15);
        if (!strncasecmp(line, "transfer-encoding:", 18)) head->chunked = 1;
        if (!strncasecmp(line, "connection: close", 17)) head->close_after = 1;
    }
    *end = '\r';
    return 1;
}

// Joins the chunks in place. Gives the bytes the request takes in the buffer, 0 if not all here.
static size_t join_chunks(connection *c, size_t start, size_t *body_len) {
    size_t at = start;
    for (long n = 1; n;) {
        char *line_end = memmem(c->in + at, c->in_len - at, "\r\n", 2);
        if (!line_end) return 0;
        n = strtol(c->in + at, 0, 16);
        at = (line_end - c->in) + 2 + n + 2;
        if (c->in_len < at) return 0;
    }
    char *to = c->in + start;
    size_t from = start;
    for (;;) {
        char *line_end = memmem(c->in + from, c->in_len - from, "\r\n", 2);
        long n = strtol(c->in + from, 0, 16);
        if (!n) break;
        memmove(to, line_end + 2, n);
        to += n;
        from = (line_end - c->in) + 2 + n + 2;
    }
    *body_len = to - (c->in + start);
    return at;
}

// "/u3/mcp" gives "u3"; "/mcp" gives "t".
static void read_prefix(const char *path, char prefix[PREFIX_SIZE]) {
    size_t len = strcspn(path + 1, "/ ?");
    strcpy(prefix, "t");
    if (path[0] != '/' || path[1 + len] != '/' || len == 0 || len >= PREFIX_SIZE) return;
    memcpy(prefix, path + 1, len);
    prefix[len] = 0;
}

// A card, or no stream at an MCP path (405), or nothing.
static int get(const char *path) {
    size_t len = strcspn(path, " ?");
    if (len == strlen(CARD_PATH) && !memcmp(path, CARD_PATH, len)) {
        answer_card();
        return 200;
    }
    return len >= 4 && !memcmp(path + len - 4, "/mcp", 4) ? 405 : 404;
}

static const char *reason(int status) {
    if (status == 200) return "200 OK";
    if (status == 202) return "202 Accepted";
    return status == 404 ? "404 Not Found" : "405 Method Not Allowed";
}

static void respond(connection *c, int status) {
    char head[160];
    size_t body_len = status == 202 ? 0 : reply.len;
    int n = snprintf(head, sizeof head, "HTTP/1.1 %s\r\n%sContent-Length: %zu\r\n\r\n",
                     reason(status), body_len ? "Content-Type: application/json\r\n" : "", body_len);
    add(&c->out, head, n);
    add(&c->out, reply.bytes, body_len);
}

// Serves every whole request in the buffer; -1 when the connection has to be dropped.
static int serve(connection *c) {
    request_head head;
    while (c->in_len && read_head(c, &head)) {
        size_t body_len = head.content_len, used = head.head_len + head.content_len;
        if (head.chunked) used = join_chunks(c, head.head_len, &body_len);
        if (!used || c->in_len < used) return 0;

        int status = 405;
        reply.len = 0;
        if (!memcmp(c->in, "POST ", 5)) {
            char prefix[PREFIX_SIZE];
            read_prefix(c->in + 5, prefix);
            status = answer((slice){c->in + head.head_len, body_len}, prefix);
        } else if (!memcmp(c->in, "GET ", 4)) {
            status = get(c->in + 4);
        } else if (!memcmp(c->in, "DELETE ", 7)) {
            status = 200;
        }
        respond(c, status);
        c->close_after = head.close_after;
        memmove(c->in, c->in + used, c->in_len - used);
        c->in_len -= used;
        if (flush(c) < 0) return -1;
    }
    return 0;
}

static int receive(connection *c) {
    if (c->in_cap - c->in_len < 8192) {
        c->in_cap *= 2;
        c->in = realloc(c->in, c->in_cap + 1);
    }
    ssize_t n = read(c->fd, c->in + c->in_len, c->in_cap - c->in_len);
    if (n < 0 && errno == EAGAIN) return 0;
    if (n <= 0) return -1;
    c->in_len += n;
    return serve(c);
}

static void accept_all(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        connection *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->in_cap = 16384;
        c->in = malloc(c->in_cap + 1);
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
    }
}

static int listen_on_port(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(http_port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&address, sizeof address) < 0 || listen(fd, 4096) < 0) {
        perror("upstream cannot listen");
        exit(1);
    }
    return fd;
}

static void http_loop(void) {
    int listener = listen_on_port();
    struct epoll_event ready[256], listening = {.events = EPOLLIN, .data.ptr = 0};
    epoll_fd = epoll_create1(0);
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &listening);
    for (;;) {
        int n = epoll_wait(epoll_fd, ready, 256, -1);
        for (int i = 0; i < n; i++) {
            connection *c = ready[i].data.ptr;
            if (!c) {
                accept_all(listener);
                continue;
            }
            int lost = 0;
            if (ready[i].events & EPOLLOUT) {
                lost = flush(c) < 0;
                if (!lost && !c->out.len) watch(c, EPOLLIN);
            }
            if (!lost && ready[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) lost = receive(c) < 0;
            if (lost) drop(c);
        }
    }
}

// ---------------------------------------------------------------- stdio

static int write_all(buffer *out) {
    for (size_t done = 0; done < out->len;) {
        ssize_t n = write(1, out->bytes + done, out->len - done);
        if (n <= 0) return -1;
        done += n;
    }
    out->len = 0;
    return 0;
}

static int stdio_loop(void) {
    size_t cap = 1 << 20, len = 0;
    char *in = malloc(cap);
    buffer out = {0};
    for (;;) {
        ssize_t n = read(0, in + len, cap - len);
        if (n <= 0) return 0;
        len += n;
        size_t at = 0;
        for (char *end; (end = memchr(in + at, '\n', len - at)); at = end - in + 1) {
            if (answer((slice){in + at, end - (in + at)}, "t") == 202) continue;
            add(&out, reply.bytes, reply.len);
            add(&out, "\n", 1);
        }
        if (write_all(&out) < 0) return 0;
        memmove(in, in + at, len - at);
        len -= at;
        if (len == cap) in = realloc(in, cap *= 2);
    }
}

int main(int argc, char **argv) {
    int stdio = 0;
    signal(SIGPIPE, SIG_IGN);
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--stdio"))
            stdio = 1;
        else if (!strcmp(argv[i], "--port") && i + 1 < argc)
            http_port = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--tools") && i + 1 < argc)
            tool_count = atoi(argv[++i]);
        else {
            fprintf(stderr, "usage: upstream --port P | --stdio [--tools N]\n");
            return 2;
        }
    }
    if (stdio) return stdio_loop();
    http_loop();
}
