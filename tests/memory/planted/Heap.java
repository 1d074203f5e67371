// Grows the heap of a Java program: arrays kept in a list.
public class Heap {
    public static void main(String[] words) throws Exception {
        String seconds = System.getenv().getOrDefault("SECONDS", "4");
        java.util.List<byte[]> kept = new java.util.ArrayList<>();
        for (int count = 0; count < 120; count++) {
            kept.add(new byte[1024 * 1024]);
            Thread.sleep((long) (Double.parseDouble(seconds) * 1000 / 120));
        }
    }
}
