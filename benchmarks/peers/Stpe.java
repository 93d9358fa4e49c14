import java.util.Locale;
import java.util.Random;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * What Java's scheduler does with the same work.
 *
 * <pre>
 * java Stpe.java waiting SIZE PAIRS
 * java Stpe.java end_to_end SIZE WORKERS
 * </pre>
 *
 * Prints nanoseconds an operation as one line of JSON.
 * waiting: schedule SIZE tasks, none of them due; cancel each of them, one by one, in the order of scheduling; then,
 * beside SIZE that wait, PAIRS times schedule one and cancel it at once.
 * end_to_end: SIZE tasks with delay 0 from this thread, counted inside the task, until the pool has ended.
 *
 * Every phase is done once, with no more than WARM_UP operations, before it is timed, so that the compiler has seen it.
 */
public final class Stpe {
    private static final long HOUR_NS = TimeUnit.HOURS.toNanos(1);
    private static final int WARM_UP = 500_000;
    private static final int MAX_DRAWN = 1_000_000; // drawn delays are used in turn, as on our side
    private static final Runnable NOOP = () -> {};

    public static void main(String[] args) throws InterruptedException {
        int size = Integer.parseInt(args[1]);
        int other = Integer.parseInt(args[2]);
        int fewer = Math.min(size, WARM_UP);
        if (args[0].equals("waiting")) {
            // HOUR_NS at least: nothing comes due while we measure.
            long[] delays = new Random(1).longs(Math.min(size, MAX_DRAWN), HOUR_NS, 2 * HOUR_NS).toArray();
            waiting(fewer, Math.min(other, WARM_UP), delays);
            double[] times = waiting(size, other, delays);
            System.out.printf(
                    Locale.ROOT, "{\"schedule\": %.1f, \"cancel\": %.1f, \"pair\": %.1f}%n", times[0], times[1], times[2]);
        } else {
            endToEnd(fewer, other);
            System.out.printf(Locale.ROOT, "{\"end_to_end\": %.1f}%n", endToEnd(size, other));
        }
    }

    private static double[] waiting(int size, int pairs, long[] delays) {
        ScheduledThreadPoolExecutor pool = pool(1);
        ScheduledFuture<?>[] futures = new ScheduledFuture<?>[size];
        long start = System.nanoTime();
        for (int i = 0; i < size; i++) {
            futures[i] = pool.schedule(NOOP, delays[i % delays.length], TimeUnit.NANOSECONDS);
        }
        long scheduled = System.nanoTime();
        for (int i = 0; i < size; i++) {
            futures[i].cancel(false);
        }
        long cancelled = System.nanoTime();
        expect(pool.getQueue().size(), 0);
        for (int i = 0; i < size; i++) {
            pool.schedule(NOOP, delays[i % delays.length], TimeUnit.NANOSECONDS);
        }
        long startPairs = System.nanoTime();
        for (int i = 0; i < pairs; i++) {
            pool.schedule(NOOP, delays[i % delays.length], TimeUnit.NANOSECONDS).cancel(false);
        }
        long end = System.nanoTime();
        expect(pool.getQueue().size(), size);
        pool.shutdownNow();
        return new double[] {
            (double) (scheduled - start) / size, (double) (cancelled - scheduled) / size, (double) (end - startPairs) / pairs
        };
    }

    private static double endToEnd(int size, int workers) throws InterruptedException {
        ScheduledThreadPoolExecutor pool = pool(workers);
        pool.prestartAllCoreThreads();
        AtomicLong count = new AtomicLong();
        Runnable task = count::incrementAndGet;
        long start = System.nanoTime();
        for (int i = 0; i < size; i++) {
            pool.schedule(task, 0, TimeUnit.NANOSECONDS);
        }
        pool.shutdown(); // what waits still runs: all of it is due
        pool.awaitTermination(1, TimeUnit.HOURS);
        long end = System.nanoTime();
        expect(count.get(), size);
        return (double) (end - start) / size;
    }

    private static ScheduledThreadPoolExecutor pool(int workers) {
        ScheduledThreadPoolExecutor pool = new ScheduledThreadPoolExecutor(workers);
        pool.setRemoveOnCancelPolicy(true);
        return pool;
    }

    private static void expect(long found, long wanted) {
        if (found != wanted) {
            throw new IllegalStateException("did " + found + " of " + wanted);
        }
    }
}
