import java.lang.management.ManagementFactory;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.jgroups.BytesMessage;
import org.jgroups.JChannel;
import org.jgroups.Message;
import org.jgroups.Receiver;
import org.jgroups.protocols.FD_SOCK2;
import org.jgroups.protocols.FRAG3;
import org.jgroups.protocols.MFC;
import org.jgroups.protocols.SEQUENCER;
import org.jgroups.protocols.TCP;
import org.jgroups.protocols.TCPPING;
import org.jgroups.protocols.UNICAST3;
import org.jgroups.protocols.pbcast.GMS;
import org.jgroups.protocols.pbcast.NAKACK2;
import org.jgroups.protocols.pbcast.STABLE;

/**
 * Members of one group on loopback, each a channel with SEQUENCER in its stack; events at Poisson times from all of them.
 * Arguments: first port, members, events, rate per second (0: as fast as it goes), bytes. Prints one line of JSON.
 */
public final class SequencerBench {
    private static final class Member implements Receiver {
        private final long[] latencies;
        private final MessageDigest order;
        private final CountDownLatch all;
        private int count;

        Member(int events) throws Exception {
            latencies = new long[events];
            order = MessageDigest.getInstance("SHA-256");
            all = new CountDownLatch(events);
        }

        @Override
        public synchronized void receive(Message message) {
            ByteBuffer body = ByteBuffer.wrap(message.getArray(), message.getOffset(), message.getLength());
            long sent = body.getLong();
            byte[] name = new byte[4];
            body.get(name);
            order.update(name);
            if (count < latencies.length) latencies[count++] = System.nanoTime() - sent;
            all.countDown();
        }
    }

    private static JChannel channel(int port, int first, int members) throws Exception {
        InetAddress loopback = InetAddress.getByName("127.0.0.1");
        TCP tcp = new TCP();
        tcp.setBindAddress(loopback).setBindPort(port);
        TCPPING ping = new TCPPING();
        List<InetSocketAddress> hosts = new ArrayList<>();
        for (int i = 0; i < members; i++) hosts.add(new InetSocketAddress(loopback, first + i));
        ping.setInitialHosts(hosts);
        JChannel made = new JChannel(
            tcp, ping, new FD_SOCK2(), new NAKACK2(), new UNICAST3(), new STABLE(), new GMS(), new MFC(), new FRAG3(),
            new SEQUENCER());
        made.setName("m" + (port - first));
        return made;
    }

    public static void main(String[] arguments) throws Exception {
        int first = Integer.parseInt(arguments[0]), members = Integer.parseInt(arguments[1]);
        int events = Integer.parseInt(arguments[2]), bytes = Math.max(12, Integer.parseInt(arguments[4]));
        double rate = Double.parseDouble(arguments[3]);
        List<JChannel> channels = new ArrayList<>();
        List<Member> heard = new ArrayList<>();
        for (int i = 0; i < members; i++) {
            Member member = new Member(events);
            JChannel made = channel(first + i, first, members);
            made.setReceiver(member);
            made.connect("bench");
            channels.add(made);
            heard.add(member);
        }
        while (channels.stream().anyMatch(each -> each.getView().size() < members)) Thread.sleep(20);
        Random dice = new Random(1);
        long cpu = cpuNanos(), begun = System.nanoTime();
        double at = begun;
        for (int number = 0; number < events; number++) {
            if (rate > 0) {
                at += -Math.log(1 - dice.nextDouble()) / rate * 1e9;
                while (System.nanoTime() < at) LockSupport.parkNanos((long) at - System.nanoTime());
            }
            byte[] payload = new byte[bytes];
            ByteBuffer.wrap(payload).putLong(System.nanoTime()).putInt(number);
            channels.get(dice.nextInt(members)).send(new BytesMessage(null, payload));
        }
        boolean isComplete = true;
        for (Member member : heard) isComplete &= member.all.await(120, TimeUnit.SECONDS);
        double seconds = (System.nanoTime() - begun) / 1e9, spent = (cpuNanos() - cpu) / 1e9;
        List<String> orders = new ArrayList<>();
        long[] all = new long[members * events];
        int filled = 0;
        for (Member member : heard) {
            orders.add(HexFormat.of().formatHex(member.order.digest()));
            System.arraycopy(member.latencies, 0, all, filled, member.count);
            filled += member.count;
        }
        long[] sorted = Arrays.copyOf(all, filled);
        Arrays.sort(sorted);
        boolean isOneOrder = isComplete && orders.stream().distinct().count() == 1;
        System.out.printf(
            "{\"events\": %d, \"seconds\": %.3f, \"cpu_s\": %.3f, \"median_us\": %d, \"p99_us\": %d, \"one_order\": %b}%n",
            events, seconds, spent, sorted[filled / 2] / 1000, sorted[(int) (filled * 0.99)] / 1000, isOneOrder);
        for (int i = members - 1; i >= 0; i--) channels.get(i).close();
        System.exit(isOneOrder ? 0 : 1);
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
