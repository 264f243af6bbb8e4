package bench;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorSupplier;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * Joins the step timings of nodes to one result a step: how many ranks, the longest own time and its lowest rank.
 *
 * <p>A step closes when all expected ranks are in. No deadlines, no repeats, no late records, no other figures. State is
 * in a store as the DSL would make it: RocksDB below a cache, with a changelog. Arguments: servers, input topic, output
 * topic, ranks of a step, messages to read, messages before the measurement begins, state directory.
 */
public final class StepJoin {
    private static final String STORE = "steps";

    private StepJoin() {}

    public static void main(String[] arguments) throws Exception {
        String input = arguments[1];
        String output = arguments[2];
        int expected = Integer.parseInt(arguments[3]);
        Meter meter = new Meter(Long.parseLong(arguments[4]), Long.parseLong(arguments[5]));

        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "bench-kafka-streams");
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[6]);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        settings.put("auto.offset.reset", "earliest");

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(input, Consumed.with(Serdes.String(), Serdes.ByteArray()))
                .processValues(new Supplier(expected, meter))
                .to(output, Produced.with(Serdes.String(), Serdes.ByteArray()));

        AtomicReference<Throwable> failure = new AtomicReference<>();
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            failure.set(error);
            meter.done.countDown();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        boolean finished = meter.done.await(300, TimeUnit.SECONDS);
        streams.close();
        if (failure.get() != null || !finished) {
            System.err.println("not finished: " + failure.get());
            System.exit(1);
        }
        System.out.println(meter.json());
    }

    private static final class Supplier implements FixedKeyProcessorSupplier<String, byte[], byte[]> {
        private final int expected;
        private final Meter meter;

        Supplier(int expected, Meter meter) {
            this.expected = expected;
            this.meter = meter;
        }

        @Override
        public FixedKeyProcessor<String, byte[], byte[]> get() {
            return new Join(expected, meter);
        }

        @Override
        public Set<StoreBuilder<?>> stores() {
            return Set.of(Stores.keyValueStoreBuilder(
                            Stores.persistentKeyValueStore(STORE), Serdes.String(), Serdes.ByteArray())
                    .withCachingEnabled());
        }
    }

    private static final class Join extends ContextualFixedKeyProcessor<String, byte[], byte[]> {
        private static final int STATE_BYTES = Integer.BYTES + Long.BYTES + Integer.BYTES;
        private final ObjectMapper mapper = new ObjectMapper();
        private final int expected;
        private final Meter meter;
        private KeyValueStore<String, byte[]> store;

        Join(int expected, Meter meter) {
            this.expected = expected;
            this.meter = meter;
        }

        @Override
        public void init(FixedKeyProcessorContext<String, byte[]> context) {
            super.init(context);
            store = context.getStateStore(STORE);
        }

        @Override
        public void process(FixedKeyRecord<String, byte[]> message) {
            meter.begin();
            byte[] result = join(message.value());
            if (result != null) {
                context().forward(message.withValue(result));
            }
            meter.end();
        }

        private byte[] join(byte[] payload) {
            JsonNode timing;
            try {
                timing = mapper.readTree(payload);
            } catch (java.io.IOException error) {
                throw new IllegalStateException("no JSON", error);
            }
            if (!timing.path("record").asText().equals("step_timing")) {
                return null;
            }
            String jobId = timing.get("job_id").asText();
            long step = timing.get("step").asLong();
            String key = jobId + "/" + step;
            int ranks = 0;
            long longest = -1;
            int longestRank = -1;
            byte[] before = store.get(key);
            if (before != null) {
                ByteBuffer state = ByteBuffer.wrap(before);
                ranks = state.getInt();
                longest = state.getLong();
                longestRank = state.getInt();
            }
            JsonNode rank = timing.get("rank");
            JsonNode own = timing.get("own_us");
            for (int index = 0; index < rank.size(); index++) {
                long ownUs = own.get(index).asLong();
                int number = rank.get(index).asInt();
                if (ownUs > longest || ownUs == longest && number < longestRank) {
                    longest = ownUs;
                    longestRank = number;
                }
            }
            ranks += rank.size();
            if (ranks < expected) {
                store.put(key, ByteBuffer.allocate(STATE_BYTES).putInt(ranks).putLong(longest).putInt(longestRank).array());
                return null;
            }
            store.delete(key);
            return ("{\"job_id\":\"" + jobId + "\",\"step\":" + step + ",\"ranks_reported\":" + ranks
                            + ",\"own_max_us\":" + longest + ",\"own_max_rank\":" + longestRank + "}")
                    .getBytes(StandardCharsets.UTF_8);
        }
    }

    /** Processor and wall time between two messages; one stream thread calls it. */
    private static final class Meter {
        private final OperatingSystemMXBean process =
                (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        private final CountDownLatch done = new CountDownLatch(1);
        private final long last;
        private final long runIn;
        private long messages;
        private long cpuNs;
        private long wallNs;

        Meter(long last, long runIn) {
            this.last = last;
            this.runIn = runIn;
        }

        void begin() {
            if (messages == runIn) {
                cpuNs = process.getProcessCpuTime();
                wallNs = System.nanoTime();
            }
        }

        void end() {
            messages++;
            if (messages == last) {
                cpuNs = process.getProcessCpuTime() - cpuNs;
                wallNs = System.nanoTime() - wallNs;
                done.countDown();
            }
        }

        String json() {
            return "{\"messages\":" + (last - runIn) + ",\"cpu_s\":" + cpuNs / 1e9 + ",\"wall_s\":" + wallNs / 1e9 + "}";
        }
    }
}
