/* The least that a program can do with the engine: read a file, hand it over block by block, count the calls.
 *
 *     bare_loop EXPRESSIONS LOG
 *
 * prints the engine's version, the CPU seconds of reading and scanning (compiling is not counted), and the number of calls.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <hs/hs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { READ_BYTES = 4 << 20, BLOCK_BYTES = 1 << 18 };

static int count(unsigned id, unsigned long long from, unsigned long long to, unsigned flags, void *calls) {
    (void)id, (void)from, (void)to, (void)flags;
    ++*(unsigned long *)calls;
    return 0;
}

static double cpu_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

static hs_database_t *compiled(const char *path) {
    static const char *lines[1 << 16];
    static unsigned ids[1 << 16], flags[1 << 16];
    unsigned n = 0;
    size_t room = 0;
    char *line = NULL;
    ssize_t size;
    FILE *file = fopen(path, "r");
    while (file && n < 1 << 16 && (size = getline(&line, &room, file)) > 0) {
        line[size - 1] = 0;
        lines[n] = strdup(line);
        ids[n] = n;
        flags[n++] = HS_FLAG_MULTILINE;
    }
    hs_database_t *made = NULL;
    hs_compile_error_t *error = NULL;
    if (hs_compile_multi(lines, flags, ids, n, HS_MODE_BLOCK, NULL, &made, &error) != HS_SUCCESS) {
        fprintf(stderr, "%s\n", error->message);
        exit(1);
    }
    return made;
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    hs_database_t *database = compiled(argv[1]);
    hs_scratch_t *scratch = NULL;
    char *data = malloc(READ_BYTES), *told = NULL;
    int log = open(argv[2], O_RDONLY);
    if (log < 0 || !data || hs_alloc_scratch(database, &scratch) != HS_SUCCESS) return 1;
    hs_database_info(database, &told);

    unsigned long calls = 0;
    double began = cpu_s();
    off_t at = 0;
    for (ssize_t got; (got = pread(log, data, READ_BYTES, at)) > 0;) {
        ssize_t done = 0;
        while (done < got) {
            ssize_t size = got - done < BLOCK_BYTES ? got - done : BLOCK_BYTES;
            char *newline = memrchr(data + done, '\n', size);
            if (newline) size = newline + 1 - (data + done);
            else if (done && got == READ_BYTES) break; /* read again together with what follows */
            if (hs_scan(database, data + done, size, 0, scratch, count, &calls) != HS_SUCCESS) return 1;
            done += size;
        }
        at += done;
    }
    printf("%.9f %lu %s\n", cpu_s() - began, calls, told);
    return 0;
}
