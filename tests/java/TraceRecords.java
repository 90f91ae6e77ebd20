import java.util.*;
import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.trace.*;
import org.apache.rocketmq.common.message.MessageType;

/** Prints trace records as the client's encoder writes them: a JSON object, name to text and keys. Takes no arguments. */
public class TraceRecords {
    static final StringBuilder OUT = new StringBuilder("{\n");

    static void add(String name, TraceContext context) {
        TraceTransferBean made = TraceDataEncoder.encoderFromContextBean(context);
        if (OUT.length() > 2) OUT.append(",\n");
        OUT.append("  \"").append(name).append("\": {\"text\": \"").append(escape(made.getTransData())).append("\", \"keys\": \"")
            .append(String.join(" ", new TreeSet<>(made.getTransKey()))).append("\"}");
    }

    static String escape(String text) {
        StringBuilder made = new StringBuilder();
        for (char c : text.toCharArray()) made.append(c < 32 || c > 126 ? String.format("\\u%04x", (int) c) : String.valueOf(c));
        return made.toString();
    }

    static TraceContext context(TraceType type, boolean success, TraceBean... beans) {
        TraceContext made = new TraceContext();
        made.setTraceType(type);
        made.setTimeStamp(1700000000123L);
        made.setRegionId("DefaultRegion");
        made.setGroupName("group");
        made.setRequestId("REQUEST");
        made.setCostTime(7);
        made.setSuccess(success);
        made.setAccessChannel(AccessChannel.LOCAL);
        made.setTraceBeans(new ArrayList<>(Arrays.asList(beans)));
        return made;
    }

    static TraceBean bean(String id, String tags, String keys) {
        TraceBean made = new TraceBean();
        made.setTopic("topic");
        made.setMsgId(id);
        made.setTags(tags);
        made.setKeys(keys);
        made.setStoreHost("127.0.0.1:10911");
        made.setBodyLength(1234);
        made.setMsgType(MessageType.Normal_Msg);
        made.setOffsetMsgId("7F00000100002A9F0000000000011362");
        made.setRetryTimes(3);
        return made;
    }

    public static void main(String[] argv) {
        add("send", context(TraceType.Pub, true, bean("ID", "A", "k-1 k-2")));
        add("send without tags and keys", context(TraceType.Pub, false, bean("ID", null, null)));
        TraceBean half = bean("ID", "n\u00e4me", "k");
        half.setMsgType(MessageType.Trans_Msg_Half);
        add("send of a half message", context(TraceType.Pub, true, half));
        TraceBean late = bean("ID", "A", "k");
        late.setMsgType(MessageType.Delay_Msg);
        add("send of a delayed message", context(TraceType.Pub, true, late));
        add("delivery", context(TraceType.SubBefore, true, bean("ID", "A", "k"), bean("ID2", "A", null)));
        TraceContext done = context(TraceType.SubAfter, true, bean("ID", "A", "k"), bean("ID2", "A", null));
        add("consumed", done);
        TraceContext failed = context(TraceType.SubAfter, false, bean("ID", "A", "k"));
        failed.setContextCode(4);
        add("failed", failed);
        TraceContext cloud = context(TraceType.SubAfter, true, bean("ID", "A", "k"));
        cloud.setAccessChannel(AccessChannel.CLOUD);
        add("consumed in the cloud", cloud);
        for (LocalTransactionState state : LocalTransactionState.values()) {
            TraceBean end = bean("ID", "A", "k");
            end.setMsgType(MessageType.Trans_msg_Commit);
            end.setTransactionId("ID");
            end.setTransactionState(state);
            end.setFromTransactionCheck(state == LocalTransactionState.ROLLBACK_MESSAGE);
            add("end " + state, context(TraceType.EndTransaction, true, end));
        }
        add("recall", context(TraceType.Recall, true, bean("ID", null, null)));
        System.out.println(OUT.append("\n}"));
    }
}
