// What C++'s own heap does with the same work: push SIZE entries, hold HOLDS times with all of them waiting, pop all.
//
//     g++ -O2 -o priority_queue priority_queue.cpp && ./priority_queue SIZE HOLDS
//
// Prints nanoseconds an operation as one line of JSON. An entry has 24 bytes, as in the timetable: run_at, seq, id.
// Times are drawn evenly over an hour before the timing; equal times leave in the order of their insertion.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <queue>
#include <random>
#include <vector>

namespace {

constexpr std::int64_t kHourNs = 3600LL * 1000 * 1000 * 1000;
constexpr std::size_t kMaxGaps = 1000 * 1000;  // drawn gaps are used in turn, as on our side

struct Entry {
    std::int64_t run_at;
    std::uint64_t seq;
    std::int64_t id;
};

struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
        return a.run_at != b.run_at ? a.run_at > b.run_at : a.seq > b.seq;
    }
};

using Clock = std::chrono::steady_clock;

double ns_each(Clock::time_point start, std::size_t count) {
    return std::chrono::duration<double, std::nano>(Clock::now() - start).count() / static_cast<double>(count);
}

std::vector<std::int64_t> random_times(std::size_t count, unsigned seed) {
    std::mt19937_64 generator(seed);
    std::uniform_int_distribution<std::int64_t> within_an_hour(0, kHourNs - 1);
    std::vector<std::int64_t> times(count);
    for (auto& time : times) time = within_an_hour(generator);
    return times;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: priority_queue SIZE HOLDS\n");
        return 2;
    }
    const std::size_t size = std::strtoull(argv[1], nullptr, 10);
    const std::size_t holds = std::strtoull(argv[2], nullptr, 10);
    const auto times = random_times(size, 1);
    const auto gaps = random_times(size < kMaxGaps ? size : kMaxGaps, 2);
    std::priority_queue<Entry, std::vector<Entry>, Later> queue;
    std::uint64_t seq = 0;

    auto start = Clock::now();
    for (const auto run_at : times) {
        queue.push({run_at, seq, static_cast<std::int64_t>(seq)});
        ++seq;
    }
    const double push = ns_each(start, size);

    std::size_t next_gap = 0;
    start = Clock::now();
    for (std::size_t i = 0; i < holds; ++i) {
        const Entry entry = queue.top();
        queue.pop();
        queue.push({entry.run_at + gaps[next_gap], seq++, entry.id});
        if (++next_gap == gaps.size()) next_gap = 0;
    }
    const double hold = ns_each(start, holds);

    std::int64_t last = 0;
    bool in_order = true;
    start = Clock::now();
    while (!queue.empty()) {
        in_order &= queue.top().run_at >= last;
        last = queue.top().run_at;
        queue.pop();
    }
    const double pop = ns_each(start, size);

    if (!in_order) {
        std::fprintf(stderr, "out of order\n");
        return 1;
    }
    std::printf("{\"push\": %.1f, \"hold\": %.1f, \"pop\": %.1f}\n", push, hold, pop);
    return 0;
}
