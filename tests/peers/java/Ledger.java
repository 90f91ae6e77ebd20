import io.openmessaging.storage.dledger.DLedgerConfig;
import io.openmessaging.storage.dledger.DLedgerServer;
import io.openmessaging.storage.dledger.client.DLedgerClient;
import io.openmessaging.storage.dledger.entry.DLedgerEntry;
import io.openmessaging.storage.dledger.protocol.AppendEntryResponse;
import io.openmessaging.storage.dledger.protocol.GetEntriesResponse;
import java.nio.charset.StandardCharsets;

/** DLedger alone, without a broker: `server group=g id=n0 peers=... dir=...`, or `append`, `get` of its own client. */
public class Ledger {
    static String of(String[] args, String name, String fallback) {
        for (String arg : args) {
            if (arg.startsWith(name + "=")) return arg.substring(name.length() + 1);
        }
        return fallback;
    }

    public static void main(String[] args) throws Exception {
        String group = of(args, "group", "g");
        String peers = of(args, "peers", null);
        if (args[0].equals("server")) {
            DLedgerConfig config = new DLedgerConfig();
            config.setGroup(group);
            config.setSelfId(of(args, "id", "n0"));
            config.setPeers(peers);
            config.setStoreBaseDir(of(args, "dir", null));
            config.setMappedFileSizeForEntryData(Integer.parseInt(of(args, "dataFile", "1048576")));
            config.setMappedFileSizeForEntryIndex(Integer.parseInt(of(args, "indexFile", "2097152")));
            config.setEnableBatchPush(Boolean.parseBoolean(of(args, "batch", "false")));
            DLedgerServer server = new DLedgerServer(config);
            server.startup();
            Runtime.getRuntime().addShutdownHook(new Thread(server::shutdown));
            System.out.println("started");
            Thread.sleep(Long.MAX_VALUE);
            return;
        }
        DLedgerClient client = new DLedgerClient(group, peers);
        client.startup();
        try {
            if (args[0].equals("append")) {
                int count = Integer.parseInt(of(args, "count", "1"));
                for (int i = 0; i < count; i++) {
                    AppendEntryResponse done = client.append(("java-" + i).getBytes(StandardCharsets.UTF_8));
                    System.out.println(done.getCode() + " " + done.getIndex() + " " + done.getPos());
                }
            } else {
                GetEntriesResponse got = client.get(Long.parseLong(of(args, "index", "0")));
                System.out.print(got.getCode());
                for (DLedgerEntry entry : got.getEntries()) {
                    System.out.print(" " + entry.getIndex() + " " + new String(entry.getBody(), StandardCharsets.UTF_8));
                }
                System.out.println();
            }
        } finally {
            client.shutdown();
        }
    }
}
