import java.io.BufferedReader;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;

import static java.nio.charset.StandardCharsets.UTF_8;

/**
 * A client on the lock functions of the book's Java code, with only the JDK.
 *
 * java tests/programs/interop/BookLock.java PORT reads and answers lines like book_lock.py.
 */
public class BookLock {
    private final OutputStream requests;
    private final DataInputStream answers;
    /** The token of the market's lock between the halves of a purchase, and the price if it can be bought. */
    private String market;
    private Long price;

    BookLock(int port) throws IOException {
        Socket socket = new Socket("127.0.0.1", port);
        socket.setTcpNoDelay(true);
        requests = socket.getOutputStream();
        answers = new DataInputStream(socket.getInputStream());
    }

    public static void main(String[] args) throws Exception {
        BookLock lock = new BookLock(Integer.parseInt(args[0]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(lock.execute(line.split(" ")));
        }
    }

    private Object execute(String[] words) throws Exception {
        String name = words[1];
        switch (words[0]) {
            case "acquire":
                return orNone(acquire(name, Long.parseLong(words[2]), null));
            case "acquire_with_timeout":
                return orNone(acquire(name, Long.parseLong(words[2]), Long.parseLong(words[3])));
            case "release":
                return release(name, words[2]);
            case "look":
                return look(name, words[2] + "." + words[3]);
            case "decide":
                return decide(name, words[2], words[3]);
            default:
                return count(name, words[2], Integer.parseInt(words[3]));
        }
    }

    private static String orNone(String identifier) {
        return identifier == null ? "none" : identifier;
    }

    private String acquire(String name, long waitMillis, Long leaseMillis) throws Exception {
        String key = "lock:" + name;
        String identifier = UUID.randomUUID().toString();
        long end = System.currentTimeMillis() + waitMillis;
        while (System.currentTimeMillis() < end) {
            boolean isOurs = ask("SETNX", key, identifier).equals(1L);
            if (leaseMillis != null && (isOurs || ask("TTL", key).equals(-1L))) {
                ask("EXPIRE", key, String.valueOf((int) (leaseMillis / 1000)));
            }
            if (isOurs) {
                return identifier;
            }
            Thread.sleep(1);
        }
        return null;
    }

    private boolean release(String name, String identifier) throws IOException {
        String key = "lock:" + name;
        while (true) {
            ask("WATCH", key);
            if (!identifier.equals(ask("GET", key))) {
                ask("UNWATCH");
                return false;
            }
            ask("MULTI");
            ask("DEL", key);
            if (ask("EXEC") != null) {
                return true;
            }
        }
    }

    private String count(String name, String number, int times) throws Exception {
        for (int i = 0; i < times; i++) {
            String identifier = acquire(name, 30_000, 10_000L);
            Object before = ask("GET", number);
            long after = (before == null ? 0 : Long.parseLong((String) before)) + 1;
            ask("SET", number, String.valueOf(after));
            if (!release(name, identifier)) {
                return "lost";
            }
        }
        return "done";
    }

    /** The first half of a purchase: acquires the market's lock, then reads the price and the funds. */
    private boolean look(String buyer, String offer) throws Exception {
        market = acquire("market", 10_000, null);
        Object score = ask("ZSCORE", "market:", offer);
        double funds = Double.parseDouble((String) ask("HGET", "users:" + buyer, "funds"));
        double cost = score == null ? Double.NaN : Double.parseDouble((String) score);
        price = cost <= funds ? (long) cost : null;
        return price != null;
    }

    /** The second half, without a transaction, as in the article. */
    private String decide(String buyer, String item, String seller) throws IOException {
        if (price != null) {
            ask("HINCRBY", "users:" + seller, "funds", String.valueOf(price));
            ask("HINCRBY", "users:" + buyer, "funds", String.valueOf(-price));
            ask("SADD", "inventory:" + buyer, item);
            ask("ZREM", "market:", item + "." + seller);
        }
        return release("market", market) ? "done" : "lost";
    }

    private Object ask(String... words) throws IOException {
        StringBuilder request = new StringBuilder("*" + words.length + "\r\n");
        for (String word : words) {
            request.append("$").append(word.getBytes(UTF_8).length).append("\r\n");
            request.append(word).append("\r\n");
        }
        requests.write(request.toString().getBytes(UTF_8));
        return answer();
    }

    private Object answer() throws IOException {
        String line = readLine();
        String rest = line.substring(1);
        switch (line.charAt(0)) {
            case '+':
                return rest;
            case ':':
                return Long.parseLong(rest);
            case '$':
                return rest.equals("-1") ? null : readText(Integer.parseInt(rest));
            case '*':
                return rest.equals("-1") ? null : readList(Integer.parseInt(rest));
            default:
                throw new IOException(line);
        }
    }

    private String readLine() throws IOException {
        StringBuilder line = new StringBuilder();
        for (int next = answers.readByte(); next != '\n'; next = answers.readByte()) {
            line.append((char) next);
        }
        return line.toString().stripTrailing();
    }

    private String readText(int length) throws IOException {
        byte[] text = new byte[length + 2];
        answers.readFully(text);
        return new String(text, 0, length, UTF_8);
    }

    private List<Object> readList(int length) throws IOException {
        List<Object> list = new ArrayList<>();
        for (int i = 0; i < length; i++) {
            list.add(answer());
        }
        return list;
    }
}
